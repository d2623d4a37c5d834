-- Index the jobs whose time has not come.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, due_at) WHERE state = 'later'
