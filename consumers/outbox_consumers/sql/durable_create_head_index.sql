-- Allow each queue at most one head, so that two jobs with the same key never run at the same time.
CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {job} (consumer, queue)
WHERE state IN ('ready', 'later', 'leased') AND queue IS NOT NULL
