-- Create the index the relay reads by: each shard's rows in the order of their positions. Locks the outbox against writing while it is built.
CREATE INDEX {index} ON {table} (({shard_of}), position)
