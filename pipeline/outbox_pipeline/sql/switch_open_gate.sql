-- Let workers of the relay in again.
SELECT pg_advisory_unlock(hashtext(%(lock)s), 0) AS opened
