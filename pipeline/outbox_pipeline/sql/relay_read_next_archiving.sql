-- Move a shard's published batch to the history, choose the next rows in the order of their positions and note them as batch n. All or nothing.
WITH found AS (
    SELECT *
    FROM {table} AS o
    WHERE {shard_of} = %(shard)s
        AND o.id NOT IN (SELECT unnest(ids) FROM {batch} WHERE shard = %(shard)s AND n = %(published)s)
        AND o.position >= %(floor)s
        AND o.position <= %(until)s
        AND coalesce(o.aggregate_type, '') <> ALL (%(unwritable)s::text[])
        AND (
            (coalesce(o.aggregate_type, ''), coalesce(o.aggregate_id, '')) NOT IN (
                SELECT coalesce(aggregate_type, ''), coalesce(aggregate_id, '') FROM {dead_letter} WHERE blocks
            )
            OR o.position < (
                SELECT min(d.position) FROM {dead_letter} AS d
                WHERE d.blocks AND d.aggregate_type = o.aggregate_type AND d.aggregate_id = o.aggregate_id
            )
        )
    ORDER BY position
    LIMIT %(limit)s
),
sized AS (
    SELECT
        *,
        sum(coalesce(pg_column_size(payload), 0)) OVER (ORDER BY position)
            - coalesce(pg_column_size(payload), 0) AS bytes_before
    FROM found
),
next AS MATERIALIZED (
    SELECT * FROM sized WHERE bytes_before < %(max_bytes)s
),
noted AS (
    INSERT INTO {batch} (shard, n, ids)
    SELECT %(shard)s, %(n)s, array_agg(id ORDER BY position) FROM next HAVING count(*) > 0
),
forgotten AS (
    DELETE FROM {batch}
    WHERE shard = %(shard)s
        AND n = (SELECT b.n FROM {batch} AS b WHERE b.shard = %(shard)s ORDER BY b.n DESC LIMIT 1)
        AND EXISTS (SELECT FROM next)
),
gone AS (
    DELETE FROM {table}
    WHERE id = ANY ((SELECT ids FROM {batch} WHERE shard = %(shard)s AND n = %(published)s)::uuid[])
    RETURNING *
),
archived AS (
    INSERT INTO {history} (
        id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, position,
        traceparent, correlation_id, causation_id, headers
    )
    SELECT
        id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, position,
        traceparent, correlation_id, causation_id, headers
    FROM gone
)
SELECT
    id::text, aggregate_type, aggregate_id, event_type, event_version::text, {payload_on_the_wire} AS payload,
    occurred_at::text, traceparent, correlation_id, causation_id, headers::text
FROM next
ORDER BY position
