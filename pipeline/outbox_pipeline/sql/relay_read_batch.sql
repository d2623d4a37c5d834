-- Read the number of the batch of a shard that was in flight last.
SELECT n FROM {batch} WHERE shard = %(shard)s ORDER BY n DESC LIMIT 1
