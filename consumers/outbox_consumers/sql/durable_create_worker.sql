-- Create the table of workers and their leases. Only a row's lease ever changes and no index has it, so heartbeats are HOT updates. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {worker} (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT now(),
    alive_until timestamptz NOT NULL,
    backend_start timestamptz,
    backend integer NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    name text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200)
