-- Read how many pages the largest part of a table has. The first query of its transaction: what its snapshot sees lies in them.
SELECT
    ceil(
        greatest(
            pg_relation_size(%(name)s::regclass),
            (SELECT max(pg_relation_size(relid)) FROM pg_partition_tree(%(name)s::regclass) WHERE isleaf)
        )::numeric / current_setting('block_size')::integer
    )::integer AS pages
