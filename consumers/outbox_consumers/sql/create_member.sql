-- Create the table of running consumers; a row without its session belongs to one that has died. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {member} (
    member uuid NOT NULL PRIMARY KEY,
    consumer text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
)
