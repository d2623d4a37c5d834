-- Index the jobs that a worker may take now, in the order they are taken in: taking costs the same however many others wait.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, priority DESC, position) WHERE state = 'ready'
