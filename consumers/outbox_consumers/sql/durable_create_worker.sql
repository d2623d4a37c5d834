-- Create the table of workers and their leases. Only the lease of a row changes and it is in no index, so renewals are HOT updates. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {worker} (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT now(),
    alive_until timestamptz NOT NULL,
    backend_start timestamptz,
    backend integer NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    name text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200)
