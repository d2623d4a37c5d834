-- Let each queue have one head at most: no two jobs of a key are ever under way, whatever the code does.
CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {job} (consumer, queue)
WHERE state IN ('ready', 'later', 'leased') AND queue IS NOT NULL
