-- Create the table of dead letters: events that are not tried any more, with their origin and error. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {dead_letter} (
    position bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer text COLLATE "C" NOT NULL,
    event_id uuid NOT NULL,
    event_type text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    key bytea,
    payload bytea,
    headers jsonb NOT NULL,
    attempts integer NOT NULL,
    first_failed_at timestamptz NOT NULL,
    last_failed_at timestamptz NOT NULL,
    error text NOT NULL,
    UNIQUE (consumer, event_id)
)
