-- Delete the rows of a batch that the topics have by now.
DELETE FROM {table}
WHERE id = ANY ((SELECT ids FROM {batch} WHERE shard = %(shard)s AND n = %(n)s)::uuid[])
