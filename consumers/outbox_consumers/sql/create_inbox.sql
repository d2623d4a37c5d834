-- Create the inbox: one row per event and consumer, a partition per day of the ids. The id as first key column and the C collation make the index cheap. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {inbox} (
    event_id uuid NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (event_id, consumer)
) PARTITION BY RANGE (event_id)
