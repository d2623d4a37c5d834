-- Write which rows a shard's batch has, which is not in the topics: the others are read again.
UPDATE {batch} SET ids = %(ids)s::uuid[] WHERE shard = %(shard)s AND n = %(n)s
