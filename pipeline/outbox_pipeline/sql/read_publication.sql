-- Read a publication and the tables in it (PostgreSQL 14 knows no row filters, column lists or schemas).
SELECT
    pg_get_userbyid(p.pubowner) AS owner,
    pg_has_role(p.pubowner, 'USAGE') AS ours,
    p.puballtables AS all_tables,
    p.pubinsert AS inserts,
    p.pubupdate AS updates,
    p.pubdelete AS deletes,
    p.pubtruncate AS truncates,
    p.pubviaroot AS via_root,
    coalesce((
        SELECT jsonb_agg(jsonb_build_object(
            'schema', n.nspname, 'name', c.relname, 'filter', NULL, 'columns', NULL
        ) ORDER BY n.nspname, c.relname)
        FROM pg_publication_rel AS r
        JOIN pg_class AS c ON c.oid = r.prrelid
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE r.prpubid = p.oid
    ), '[]') AS tables,
    '[]'::jsonb AS schemas
FROM pg_publication AS p
WHERE p.pubname = %(name)s
