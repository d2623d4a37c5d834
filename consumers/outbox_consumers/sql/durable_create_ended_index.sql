-- Index the jobs that are over but kept: dead ones, and done ones for as long as they are wanted.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, state, ended_at) WHERE state IN ('done', 'dead')
