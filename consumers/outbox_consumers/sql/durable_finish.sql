-- Remove finished jobs that this worker still holds: of two workers that finish the same job, one matches no row. Only leased jobs have a worker; without a condition on state, the planner cannot choose an index on states.
DELETE FROM {job} AS job
USING unnest(%(positions)b::bigint[], %(tokens)b::integer[]) AS mine(position, taken)
WHERE job.position = mine.position AND job.taken = mine.taken
  AND job.worker = %(worker)s
RETURNING job.queue
