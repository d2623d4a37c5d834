-- Take the session-level advisory lock of a shard, if nobody has it.
SELECT pg_try_advisory_lock(hashtext(%(lock)s), %(shard)s + 1) AS taken
