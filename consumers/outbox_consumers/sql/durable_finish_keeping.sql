-- Mark finished jobs that this worker still holds as done: of two workers that finish the same job, one matches no row.
UPDATE {job} AS job
SET state = 'done', ended_at = now(), worker = NULL, error = NULL
FROM unnest(%(positions)b::bigint[], %(tokens)b::integer[]) AS mine(position, taken)
WHERE job.position = mine.position AND job.taken = mine.taken
  AND job.worker = %(worker)s
RETURNING job.queue
