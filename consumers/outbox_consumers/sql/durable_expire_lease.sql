-- End the lease of a worker whose process has died.
UPDATE {worker} SET alive_until = '-infinity' WHERE consumer = %(consumer)s AND name = %(name)s
