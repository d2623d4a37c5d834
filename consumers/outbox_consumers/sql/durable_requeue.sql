-- Make the jobs of workers that are gone ready again. A job that was alone in the hands of a dead worker twice counts an attempt: it may be what kills them.
UPDATE {job} AS job
SET state = 'ready', worker = NULL, attempts = attempts + suspect::integer, suspect = true,
    error = 'its worker died'
WHERE position = ANY(ARRAY(
    SELECT position
    FROM {job} AS leased
    WHERE consumer = %(consumer)s AND state = 'leased'
      AND NOT EXISTS (SELECT FROM {worker} WHERE id = leased.worker)
    FOR UPDATE OF leased SKIP LOCKED
))
