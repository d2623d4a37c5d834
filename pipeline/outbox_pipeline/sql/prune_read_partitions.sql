-- Read the daily partitions of a table, with the day behind each and its size; the default partition has none.
SELECT
    c.relname AS name,
    substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \(''([^'']+)''\)')::timestamptz AS behind,
    pg_total_relation_size(c.oid) AS bytes
FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(%(table)s)
ORDER BY 1
