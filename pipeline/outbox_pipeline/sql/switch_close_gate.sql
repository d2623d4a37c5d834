-- Keep workers of the relay out, if none is in.
SELECT pg_try_advisory_lock(hashtext(%(lock)s), 0) AS closed
