-- Move a row that can never be published to the dead letters.
WITH gone AS (
    DELETE FROM {table} WHERE id = %(id)s RETURNING *
)
INSERT INTO {dead_letter} AS d (
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, position,
    traceparent, correlation_id, causation_id, headers, cause, attempts, blocks
)
SELECT
    id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, position,
    traceparent, correlation_id, causation_id, headers, %(cause)s, %(attempts)s, %(blocks)s
FROM gone
ON CONFLICT (id) DO UPDATE SET
    cause = excluded.cause, attempts = d.attempts + excluded.attempts, failed_at = now(), blocks = excluded.blocks
