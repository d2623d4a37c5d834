-- Let workers of the relay start again.
SELECT pg_advisory_unlock(hashtext(%(lock)s), 0) AS opened
