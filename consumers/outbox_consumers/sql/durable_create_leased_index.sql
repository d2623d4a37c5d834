-- Index the jobs that a worker has in hand.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, worker) WHERE state = 'leased'
