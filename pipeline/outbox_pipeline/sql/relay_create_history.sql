-- Create the history of published rows, partitioned by the time they were published. Needs CREATE on the schema.
CREATE TABLE {history} (
    LIKE {table},
    relayed_at timestamptz NOT NULL DEFAULT now()
) PARTITION BY RANGE (relayed_at)
