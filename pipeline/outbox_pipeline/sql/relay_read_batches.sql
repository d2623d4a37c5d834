-- Read the number of the batch of each shard that was in flight last.
SELECT shard, n FROM {batch}
