-- Index the jobs that a worker may take, in the order in which they are taken: the cost of taking does not depend on how many jobs wait.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, priority DESC, position) WHERE state = 'ready'
