-- Read the ids of rows, as 16 bytes, of events that occurred since a moment; reads the whole table.
SELECT uuid_send(id) FROM {table} WHERE %(since)s::timestamptz IS NULL OR occurred_at >= %(since)s::timestamptz
