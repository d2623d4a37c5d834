-- Index the jobs that are not yet sorted into their queue.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, position) WHERE state = 'new'
