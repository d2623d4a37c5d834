-- Remove finished jobs, if this worker still holds them: of two that think so, one finds nothing.
DELETE FROM {job} AS job
USING unnest(%(positions)b::bigint[], %(tokens)b::integer[]) AS mine(position, taken)
WHERE job.position = mine.position AND job.taken = mine.taken
  AND job.worker = %(worker)s AND job.state = 'leased'
RETURNING job.queue
