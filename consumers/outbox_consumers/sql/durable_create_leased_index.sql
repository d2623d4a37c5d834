-- Index the jobs that a worker has leased.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, worker) WHERE state = 'leased'
