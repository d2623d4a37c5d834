-- List the rows that could never be published, oldest first.
SELECT
    id::text, aggregate_type, aggregate_id, event_type, octet_length({payload_on_the_wire}) AS payload_bytes,
    occurred_at, failed_at, attempts, blocks, cause
FROM {dead_letter}
WHERE (%(id)s::uuid IS NULL OR id = %(id)s) AND (%(aggregate_id)s::text IS NULL OR aggregate_id = %(aggregate_id)s)
ORDER BY failed_at, position
LIMIT %(limit)s
