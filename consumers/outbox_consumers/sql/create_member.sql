-- Create the table of running processes; a row whose lock is not held belongs to one that crashed. Needs CREATE on the schema.
CREATE TABLE IF NOT EXISTS {member} (
    member uuid NOT NULL PRIMARY KEY,
    consumer text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
)
