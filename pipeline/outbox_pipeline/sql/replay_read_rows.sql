-- Read the rows of a selection in the order of their positions; reads the whole table unless ids are given.
SELECT
    id::text, aggregate_type, aggregate_id, event_type, event_version::text, {payload_on_the_wire} AS payload,
    occurred_at::text, traceparent, correlation_id, causation_id, headers::text
FROM {table}
WHERE (%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s))
    AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s)
    AND (%(aggregate_type)s::text IS NULL OR aggregate_type = %(aggregate_type)s)
    AND (%(aggregate_id)s::text IS NULL OR aggregate_id = %(aggregate_id)s)
ORDER BY position
