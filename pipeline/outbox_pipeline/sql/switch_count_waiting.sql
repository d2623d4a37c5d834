-- Count the rows that wait behind a dead letter of their aggregate.
SELECT count(*)
FROM {table} AS r
WHERE EXISTS (
    SELECT FROM {dead_letter} AS d
    WHERE d.blocks
        AND d.position <= r.position
        AND d.aggregate_type IS NOT DISTINCT FROM r.aggregate_type
        AND d.aggregate_id IS NOT DISTINCT FROM r.aggregate_id
)
