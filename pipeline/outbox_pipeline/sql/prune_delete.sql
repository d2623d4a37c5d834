-- Delete a small batch of rows by their ids.
DELETE FROM {table} WHERE id = ANY (%(ids)s::uuid[])
