-- Read which of some rows are behind a position.
SELECT id FROM {table} WHERE id = ANY (%(ids)s::uuid[]) AND position > %(position)s
