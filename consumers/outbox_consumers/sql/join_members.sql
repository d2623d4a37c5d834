-- Register this process; its session holds the lock until the process ends.
WITH joined AS (
    INSERT INTO {member} (member, consumer) VALUES (%(member)s, %(consumer)s) ON CONFLICT DO NOTHING
)
SELECT pg_try_advisory_lock(hashtextextended(%(member)s::text, 0))
