-- Make jobs ready that are due, the longest overdue first.
UPDATE {job}
SET state = 'ready'
WHERE position = ANY(ARRAY(
    SELECT position
    FROM {job}
    WHERE consumer = %(consumer)s AND state = 'later' AND due_at <= now()
    ORDER BY due_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
