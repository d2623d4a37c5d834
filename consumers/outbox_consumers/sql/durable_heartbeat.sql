-- Extend a worker's lease. Changes nothing when others have declared it dead.
UPDATE {worker} SET alive_until = now() + make_interval(secs => %(lease)s) WHERE id = %(worker)s
