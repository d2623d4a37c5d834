-- Create the table of parked events: each aggregate's failed event and those behind it, in order. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {parked} (
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
    queue bytea NOT NULL,
    due_at timestamptz NOT NULL,
    UNIQUE (consumer, queue, position)
)
