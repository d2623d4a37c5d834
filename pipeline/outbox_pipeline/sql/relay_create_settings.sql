-- Create the one-row table that says which pipeline relays the outbox, over how many shards. Needs CREATE on the schema.
CREATE TABLE {settings} (
    only_row boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    pipeline text NOT NULL,
    shards integer NOT NULL CHECK (shards BETWEEN 1 AND 256),
    until_position bigint
)
