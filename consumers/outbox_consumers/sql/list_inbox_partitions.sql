-- List the partitions of the inbox with their bounds, size in bytes and estimated rows.
SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bounds,
       pg_total_relation_size(c.oid) AS bytes, GREATEST(c.reltuples, 0)::bigint AS rows
FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%(inbox)s)
ORDER BY 1
