-- Extend a worker's lease. Matches no row when the worker was removed because its lease had expired.
UPDATE {worker} SET alive_until = now() + make_interval(secs => %(lease)s) WHERE id = %(worker)s
