-- Release the session-level advisory lock of a shard.
SELECT pg_advisory_unlock(hashtext(%(lock)s), %(shard)s + 1) AS given
