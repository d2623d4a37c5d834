-- Mark finished jobs as done, if this worker still holds them: of two that think so, one finds nothing.
UPDATE {job} AS job
SET state = 'done', ended_at = now(), worker = NULL, error = NULL
FROM unnest(%(positions)b::bigint[], %(tokens)b::integer[]) AS mine(position, taken)
WHERE job.position = mine.position AND job.taken = mine.taken
  AND job.worker = %(worker)s
RETURNING job.queue
