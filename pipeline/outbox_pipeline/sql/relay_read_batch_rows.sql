-- Read the rows of the batch that was in flight last, to publish exactly those again.
SELECT
    id::text, aggregate_type, aggregate_id, event_type, event_version::text, {payload_on_the_wire} AS payload,
    occurred_at::text, traceparent, correlation_id, causation_id, headers::text
FROM {table}
WHERE id = ANY ((SELECT ids FROM {batch} WHERE shard = %(shard)s ORDER BY n DESC LIMIT 1)::uuid[])
ORDER BY position
