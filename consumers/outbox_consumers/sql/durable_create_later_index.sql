-- Index the jobs that are not due yet.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, due_at) WHERE state = 'later'
