-- Read the ids in a range of pages, packed into buckets by their last byte, of events that occurred since a moment, up to a position.
SELECT get_byte(uuid_send(id), 15) & 127 AS bucket, string_agg(uuid_send(id), ''::bytea) AS packed
FROM {table}
WHERE ctid >= %(from_row)s::tid AND ctid < %(to_row)s::tid
    AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s::timestamptz)
    AND (%(until)s::bigint IS NULL OR position <= %(until)s::bigint)
GROUP BY 1
