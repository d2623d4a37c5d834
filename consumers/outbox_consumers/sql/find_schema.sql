-- Find the schema in which this session finds a table.
SELECT n.nspname::text
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%(table)s)
