-- Remove a worker that holds no jobs.
DELETE FROM {worker} WHERE id = %(worker)s
