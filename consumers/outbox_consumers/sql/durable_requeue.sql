-- Make the leased jobs of removed workers ready again. The second worker in a row that dies with a job counts as an attempt: the job may be the cause.
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
