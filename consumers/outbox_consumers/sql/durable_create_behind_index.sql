-- Index the jobs behind the head of their queue, to find the next one.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, queue, position) WHERE state IN ('new', 'waiting')
