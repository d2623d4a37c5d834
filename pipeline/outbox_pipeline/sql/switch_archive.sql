-- Move rows that the connector has published to the history, in one statement.
WITH gone AS (
    DELETE FROM {table} WHERE id = ANY (%(ids)s::uuid[]) RETURNING *
)
INSERT INTO {history} (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, position,
    traceparent, correlation_id, causation_id, headers
)
SELECT
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, position,
    traceparent, correlation_id, causation_id, headers
FROM gone
