-- Index the ended jobs that are kept: dead ones, and done ones until they are purged.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, state, ended_at) WHERE state IN ('done', 'dead')
