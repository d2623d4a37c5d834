-- Write one event without payload (a tombstone) into an outbox of either payload type. Needs INSERT on the table.
INSERT INTO {table} (
    id, aggregate_type, aggregate_id, event_type, event_version, payload,
    occurred_at, traceparent, correlation_id, causation_id, headers
) VALUES (
    CAST(%(id)s AS uuid), CAST(%(aggregate_type)s AS text), CAST(%(aggregate_id)s AS text),
    CAST(%(event_type)s AS text), CAST(%(event_version)s AS integer), NULL,
    CAST(%(occurred_at)s AS timestamptz), CAST(%(traceparent)s AS text), CAST(%(correlation_id)s AS text),
    CAST(%(causation_id)s AS text), CAST(CAST(%(headers)s AS text) AS jsonb)
)
