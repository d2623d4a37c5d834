-- Create the one-row table that stores the last publisher of the outbox. Needs CREATE on the schema the first time.
CREATE TABLE IF NOT EXISTS {road} (
    only_row boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (only_row),
    road text NOT NULL CHECK (road IN ('cdc', 'relay')),
    why text NOT NULL,
    since timestamptz NOT NULL DEFAULT now()
)
