-- Read the lowest position up to `until` at which each shard has a row, else the one behind `until`. Uses the relay's index.
SELECT
    s.shard,
    coalesce(
        (
            SELECT o.position
            FROM {table} AS o
            WHERE {shard_of} = s.shard AND o.position >= s.floor AND o.position <= %(until)s
            ORDER BY o.position
            LIMIT 1
        ),
        %(until)s + 1
    )
FROM unnest(%(shards)s::integer[], %(floors)s::bigint[]) AS s (shard, floor)
