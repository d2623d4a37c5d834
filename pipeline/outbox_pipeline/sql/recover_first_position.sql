-- Read the first position among some rows.
SELECT min(position) FROM {table} WHERE id = ANY (%(ids)s::uuid[])
