-- Make jobs that this worker holds ready for other workers, at once or after a delay.
UPDATE {job} AS job
SET state = CASE WHEN %(delay)s::float8 > 0 THEN 'later' ELSE 'ready' END,
    due_at = CASE
        WHEN %(delay)s::float8 > 0 THEN now() + make_interval(secs => %(delay)s::float8) ELSE job.due_at
    END,
    worker = NULL
FROM unnest(%(positions)b::bigint[], %(tokens)b::integer[]) AS mine(position, taken)
WHERE job.position = mine.position AND job.taken = mine.taken
  AND job.worker = %(worker)s
