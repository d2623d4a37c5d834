-- Keep workers of the relay out, if there is none now.
SELECT pg_try_advisory_lock(hashtext(%(lock)s), 0) AS closed
