-- Read the number of the batch of each shard that was on its way last.
SELECT shard, n FROM {batch}
