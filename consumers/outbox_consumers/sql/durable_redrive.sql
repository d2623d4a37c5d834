-- Let dead jobs be tried again, as if for the first time, in their old places.
UPDATE {job}
SET state = CASE WHEN queue IS NULL THEN 'ready' ELSE 'new' END, attempts = 0, suspect = false, due_at = now(),
    ended_at = NULL
WHERE consumer = %(consumer)s AND state = 'dead' AND position = ANY(%(positions)b::bigint[])
