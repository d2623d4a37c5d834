-- Read whether the publication covers the outbox table, by itself, its schema, or through all of its partitions, and
-- whether a row filter stands in between. Catalogs only: the view pg_publication_tables would lock the tables.
WITH RECURSIVE publication AS (SELECT * FROM pg_publication WHERE pubname = %(publication)s),
members AS (
    SELECT r.prrelid AS oid, r.prqual IS NOT NULL AS filtered
    FROM pg_publication_rel AS r JOIN publication AS p ON p.oid = r.prpubid
    UNION ALL
    SELECT c.oid, FALSE
    FROM pg_publication_namespace AS s
    JOIN publication AS p ON p.oid = s.pnpubid
    JOIN pg_class AS c ON c.relnamespace = s.pnnspid
),
tree AS (
    SELECT c.oid, c.relkind, c.oid IN (SELECT oid FROM members) AS covered
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND c.relkind IN ('r', 'p')
    UNION
    SELECT c.oid, c.relkind, t.covered OR c.oid IN (SELECT oid FROM members)
    FROM tree AS t
    JOIN pg_inherits AS i ON i.inhparent = t.oid
    JOIN pg_class AS c ON c.oid = i.inhrelid
)
SELECT jsonb_build_object(
    'publishes_insert', p.pubinsert,
    'covers_table', p.puballtables OR coalesce(
        (SELECT bool_and(covered) FROM tree WHERE relkind = 'r'), (SELECT bool_and(covered) FROM tree), FALSE
    ),
    'row_filter', NOT p.puballtables
        AND EXISTS (SELECT FROM members AS m JOIN tree AS t ON t.oid = m.oid WHERE m.filtered)
) AS publication
FROM publication AS p
