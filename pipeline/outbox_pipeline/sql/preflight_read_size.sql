-- Read the size of a table without what is stored out of line, in bytes, its partitions included.
SELECT coalesce(sum(pg_relation_size(c.oid)), 0)::bigint
FROM pg_class AS c
WHERE c.oid = to_regclass(%(name)s)
    OR c.oid IN (SELECT i.inhrelid FROM pg_inherits AS i WHERE i.inhparent = to_regclass(%(name)s))
