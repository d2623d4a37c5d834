-- Read which shards have rows that may be published. Uses the relay's index.
SELECT s.shard
FROM unnest(%(shards)s::integer[]) AS s (shard)
WHERE EXISTS (
    SELECT FROM {table}
    WHERE {shard_of} = s.shard
        AND coalesce(aggregate_type, '') <> ALL (%(parked)s::text[])
        AND (coalesce(aggregate_type, ''), coalesce(aggregate_id, '')) NOT IN (
            SELECT coalesce(aggregate_type, ''), coalesce(aggregate_id, '') FROM {dead_letter} WHERE blocks
        )
)
