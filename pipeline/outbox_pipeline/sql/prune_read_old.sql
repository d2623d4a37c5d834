-- Read the ids of rows older than a moment, as 16 bytes; reads the whole table.
SELECT uuid_send(id) FROM {table} WHERE {moment} < %(before)s
