-- Make dead jobs ready again with all attempts and in their old order, one more every interval.
WITH again AS (
    SELECT position AS place,
           now() + make_interval(secs => (row_number() OVER (ORDER BY position) - 1) * %(interval)s) AS due
    FROM {job}
    WHERE state = 'dead' AND position = ANY(%(positions)b::bigint[])
)
UPDATE {job}
SET state = CASE WHEN queue IS NOT NULL THEN 'new' WHEN due > now() THEN 'later' ELSE 'ready' END,
    attempts = 0, suspect = false, due_at = due, ended_at = NULL
FROM again
WHERE position = place AND state = 'dead'
