-- Create the table of jobs. Free space on each page keeps the versions of a row together; vacuum starts after a fixed number of dead rows, whatever the size of the table. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {job} (
    position bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    due_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    worker bigint,
    "offset" bigint NOT NULL,
    partition integer NOT NULL,
    taken integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    suspect boolean NOT NULL DEFAULT false,
    event_id uuid NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL
        CHECK (state IN ('new', 'waiting', 'ready', 'later', 'leased', 'done', 'dead')),
    queue bytea,
    event_type text NOT NULL,
    topic text NOT NULL,
    key bytea,
    payload bytea,
    headers jsonb NOT NULL,
    error text
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
)
