-- Name the aggregate types of rows; a condition that is NULL is none. Without conditions it reads the whole table.
SELECT DISTINCT aggregate_type
FROM {table}
WHERE (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s::uuid[]))
    AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s::timestamptz)
    AND (%(aggregate_type)s::text IS NULL OR aggregate_type = %(aggregate_type)s)
    AND (%(aggregate_id)s::text IS NULL OR aggregate_id = %(aggregate_id)s)
