-- Read the shape of a table: columns, primary key, checks, row triggers, partitions, storage parameters, owner.
SELECT
    c.relkind::text AS kind,
    pg_get_userbyid(c.relowner) AS owner,
    pg_has_role(c.relowner, 'USAGE') AS ours,
    coalesce(c.reloptions, '{}') AS options,
    pg_get_partkeydef(c.oid) AS partition_key,
    coalesce((
        SELECT jsonb_agg(jsonb_build_object(
            'name', a.attname,
            'type', format_type(a.atttypid, a.atttypmod),
            'not_null', a.attnotnull,
            'default', pg_get_expr(d.adbin, d.adrelid),
            'identity', a.attidentity <> ''
        ) ORDER BY a.attnum)
        FROM pg_attribute AS a
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ), '[]') AS columns,
    coalesce((
        SELECT jsonb_agg(a.attname ORDER BY k.at)
        FROM pg_index AS i
        CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, at)
        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND i.indisprimary
    ), '[]') AS primary_key,
    coalesce((
        SELECT jsonb_object_agg(o.conname, pg_get_constraintdef(o.oid))
        FROM pg_constraint AS o
        WHERE o.conrelid = c.oid AND o.contype = 'c'
    ), '{}') AS checks,
    coalesce((
        SELECT jsonb_object_agg(t.tgname, t.tgenabled IN ('O', 'A'))
        FROM pg_trigger AS t
        WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgtype & 7 = 7
    ), '{}') AS row_triggers,
    coalesce((
        SELECT jsonb_object_agg(p.relname, jsonb_build_object(
            'bound', pg_get_expr(p.relpartbound, p.oid), 'options', coalesce(p.reloptions, '{}')
        ))
        FROM pg_inherits AS h
        JOIN pg_class AS p ON p.oid = h.inhrelid
        WHERE h.inhparent = c.oid
    ), '{}') AS partitions
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(name)s
