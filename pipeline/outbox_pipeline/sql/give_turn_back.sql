-- Give the session-level advisory lock of a pipeline back.
SELECT pg_advisory_unlock(hashtextextended(%(key)s, 0)) AS given
