-- Read which shards have rows that may be published. Uses the relay's index.
SELECT s.shard
FROM unnest(%(shards)s::integer[], %(floors)s::bigint[]) AS s (shard, floor)
WHERE EXISTS (
    SELECT FROM {table} AS o
    WHERE {shard_of} = s.shard
        AND o.position >= s.floor
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
)
