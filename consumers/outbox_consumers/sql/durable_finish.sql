-- Remove finished jobs, if this worker still holds them: of two that think so, one finds nothing. Only a leased job has a worker; its state is left out, so that no index of states comes into the plan.
DELETE FROM {job} AS job
USING unnest(%(positions)b::bigint[], %(tokens)b::integer[]) AS mine(position, taken)
WHERE job.position = mine.position AND job.taken = mine.taken
  AND job.worker = %(worker)s
RETURNING job.queue
