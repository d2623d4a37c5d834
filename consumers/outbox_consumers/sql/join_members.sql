-- Say that this process runs; its session keeps the lock for as long as it lives.
WITH joined AS (
    INSERT INTO {member} (member, consumer) VALUES (%(member)s, %(consumer)s) ON CONFLICT DO NOTHING
)
SELECT pg_try_advisory_lock(hashtextextended(%(member)s::text, 0))
