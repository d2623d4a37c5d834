-- Put dead letters back into the outbox, with their ids and at their old places in the order, and tell the workers to read from the beginning.
WITH gone AS (
    DELETE FROM {dead_letter} WHERE id = ANY (%(ids)s::uuid[]) RETURNING *
),
back AS (
    INSERT INTO {table} (
        id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, position,
        traceparent, correlation_id, causation_id, headers
    )
    OVERRIDING SYSTEM VALUE
    SELECT
        id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, position,
        traceparent, correlation_id, causation_id, headers
    FROM gone
    RETURNING id
)
SELECT id, pg_notify({channel_name}, 'behind') FROM back
