-- End the lease of a worker whose process is known to be gone.
UPDATE {worker} SET alive_until = '-infinity' WHERE consumer = %(consumer)s AND name = %(name)s
