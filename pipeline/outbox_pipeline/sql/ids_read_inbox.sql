-- Read the ids in a range of pages that a consumer has applied, packed into buckets by their last byte.
SELECT get_byte(uuid_send(event_id), 15) & 127 AS bucket, string_agg(uuid_send(event_id), ''::bytea) AS packed
FROM {inbox}
WHERE ctid >= %(from_row)s::tid AND ctid < %(to_row)s::tid
    AND (%(consumer)s::text IS NULL OR consumer = %(consumer)s)
GROUP BY 1
