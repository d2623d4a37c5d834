-- Remove a batch of done jobs that have been kept long enough.
DELETE FROM {job}
WHERE position = ANY(ARRAY(
    SELECT position
    FROM {job}
    WHERE consumer = %(consumer)s AND state = 'done' AND ended_at < now() - make_interval(secs => %(keep)s)
    ORDER BY ended_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
