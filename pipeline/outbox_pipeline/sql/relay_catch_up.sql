-- Note a batch that Kafka has as published and cleared away, where this database has not seen as many batches.
WITH seen AS (
    SELECT n FROM {batch} WHERE shard = %(shard)s
),
forgotten AS (
    DELETE FROM {batch} WHERE shard = %(shard)s AND n < %(n)s
)
INSERT INTO {batch} (shard, n, ids)
SELECT %(shard)s, %(n)s, ARRAY[]::uuid[]
WHERE NOT EXISTS (SELECT FROM seen WHERE n >= %(n)s)
