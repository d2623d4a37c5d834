-- Index the jobs that nobody has put into their queue yet.
CREATE INDEX IF NOT EXISTS {index} ON {job} (consumer, position) WHERE state = 'new'
