-- Write many events with JSON payloads in the order given, in the caller's transaction. Needs INSERT on the table.
-- INSERT ... SELECT gives every row a position of its own in the log (COPY does not).
INSERT INTO {table} (
    id, aggregate_type, aggregate_id, event_type, event_version, payload,
    occurred_at, traceparent, correlation_id, causation_id, headers
)
SELECT
    e.id, e.aggregate_type, e.aggregate_id, e.event_type, e.event_version, CAST(e.payload AS jsonb),
    e.occurred_at, e.traceparent, e.correlation_id, e.causation_id, CAST(e.headers AS jsonb)
FROM unnest(
    CAST(%(id)b AS uuid[]), CAST(%(aggregate_type)b AS text[]), CAST(%(aggregate_id)b AS text[]),
    CAST(%(event_type)b AS text[]), CAST(%(event_version)b AS integer[]), CAST(%(payload)b AS text[]),
    CAST(%(occurred_at)b AS timestamptz[]), CAST(%(traceparent)b AS text[]), CAST(%(correlation_id)b AS text[]),
    CAST(%(causation_id)b AS text[]), CAST(%(headers)b AS text[])
) WITH ORDINALITY AS e (
    id, aggregate_type, aggregate_id, event_type, event_version, payload,
    occurred_at, traceparent, correlation_id, causation_id, headers, place
)
ORDER BY e.place
