-- Create the table with one row per shard: the number and the ids of the batch that is on its way. Needs CREATE on the schema.
CREATE TABLE {batch} (
    shard integer NOT NULL,
    n bigint NOT NULL,
    ids uuid[] NOT NULL,
    PRIMARY KEY (shard, n)
)
