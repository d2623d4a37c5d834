-- Create the table that counts the attempts of events that may have crashed a process. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {attempt} (
    event_id uuid NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    last_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (event_id, consumer)
)
