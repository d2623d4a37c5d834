-- Choose a shard's next rows in the order of their positions and note their ids as batch n. Locks no row of the outbox.
WITH found AS (
    SELECT *
    FROM {table}
    WHERE {shard_of} = %(shard)s
        AND coalesce(aggregate_type, '') <> ALL (%(parked)s::text[])
        AND (coalesce(aggregate_type, ''), coalesce(aggregate_id, '')) NOT IN (
            SELECT coalesce(aggregate_type, ''), coalesce(aggregate_id, '') FROM {dead_letter} WHERE blocks
        )
    ORDER BY position
    LIMIT %(limit)s
),
sized AS (
    SELECT *, sum(coalesce(pg_column_size(payload), 0)) OVER (ORDER BY position) - coalesce(pg_column_size(payload), 0) AS bytes_before
    FROM found
),
next AS MATERIALIZED (
    SELECT * FROM sized WHERE bytes_before < %(max_bytes)s
),
noted AS (
    INSERT INTO {batch} (shard, n, ids)
    SELECT %(shard)s, %(n)s, array_agg(id ORDER BY position) FROM next HAVING count(*) > 0
    ON CONFLICT (shard) DO UPDATE SET n = excluded.n, ids = excluded.ids
)
SELECT
    id::text, aggregate_type, aggregate_id, event_type, event_version::text, {payload_on_the_wire} AS payload,
    occurred_at::text, traceparent, correlation_id, causation_id, headers::text
FROM next
ORDER BY position
