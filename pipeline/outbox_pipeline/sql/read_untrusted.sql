-- Read which of these tables and functions belong to a role that is not trusted, or would run code of such a role: triggers, rules, policies, defaults, checks, indexes and types, of partitions too.
WITH RECURSIVE trusted AS (
    SELECT r.oid
    FROM pg_catalog.pg_roles AS r
    JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
    JOIN pg_catalog.pg_roles AS me ON me.rolname = current_user
    WHERE
        r.rolsuper OR r.oid IN (d.datdba, me.oid) OR r.rolname = 'pg_database_owner'
        OR (NOT me.rolsuper AND pg_catalog.pg_has_role(me.oid, r.oid, 'USAGE'))
    UNION
    SELECT n.nspowner
    FROM pg_catalog.unnest(%(tables)s::text[]) AS wanted (name)
    JOIN pg_catalog.pg_class AS c ON c.oid = pg_catalog.to_regclass(wanted.name)
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
),
family AS (
    SELECT c.oid
    FROM pg_catalog.unnest(%(tables)s::text[]) AS wanted (name)
    JOIN pg_catalog.pg_class AS c ON c.oid = pg_catalog.to_regclass(wanted.name)
    UNION
    SELECT h.inhrelid
    FROM family AS f
    JOIN pg_catalog.pg_inherits AS h ON h.inhparent = f.oid
),
parts AS (
    SELECT oid AS relid, 'pg_class'::regclass AS classid, oid AS objid, 'a column' AS what FROM family
    UNION ALL
    SELECT adrelid, 'pg_attrdef'::regclass, a.oid, 'a default'
    FROM family AS f JOIN pg_catalog.pg_attrdef AS a ON a.adrelid = f.oid
    UNION ALL
    SELECT conrelid, 'pg_constraint'::regclass, o.oid, 'check ' || o.conname
    FROM family AS f JOIN pg_catalog.pg_constraint AS o ON o.conrelid = f.oid AND o.contype <> 'f'
    UNION ALL
    SELECT tgrelid, 'pg_trigger'::regclass, t.oid, 'trigger ' || t.tgname
    FROM family AS f JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = f.oid AND NOT t.tgisinternal
    UNION ALL
    SELECT polrelid, 'pg_policy'::regclass, p.oid, 'policy ' || p.polname
    FROM family AS f JOIN pg_catalog.pg_policy AS p ON p.polrelid = f.oid
    UNION ALL
    SELECT ev_class, 'pg_rewrite'::regclass, w.oid, 'rule ' || w.rulename
    FROM family AS f JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = f.oid
    UNION ALL
    SELECT indrelid, 'pg_class'::regclass, i.indexrelid, 'index ' || x.relname
    FROM family AS f
    JOIN pg_catalog.pg_index AS i ON i.indrelid = f.oid
    JOIN pg_catalog.pg_class AS x ON x.oid = i.indexrelid
),
used AS (
    SELECT p.relid, p.what, d.refclassid, d.refobjid
    FROM parts AS p
    JOIN pg_catalog.pg_depend AS d ON d.classid = p.classid AND d.objid = p.objid
),
found AS (
    SELECT c.oid::regclass::text AS object, c.relowner AS owner, '' AS what
    FROM family AS f JOIN pg_catalog.pg_class AS c ON c.oid = f.oid
    UNION ALL
    SELECT p.oid::regprocedure::text, p.proowner, ''
    FROM pg_catalog.unnest(%(functions)s::text[]) AS wanted (name)
    JOIN pg_catalog.pg_proc AS p ON p.oid = pg_catalog.to_regprocedure(wanted.name)
    UNION ALL
    SELECT u.relid::regclass::text, p.proowner, u.what || ' calls ' || p.oid::regprocedure::text
    FROM used AS u JOIN pg_catalog.pg_proc AS p ON u.refclassid = 'pg_proc'::regclass AND p.oid = u.refobjid
    UNION ALL
    SELECT u.relid::regclass::text, p.oprowner, u.what || ' uses operator ' || p.oid::regoperator::text
    FROM used AS u
    JOIN pg_catalog.pg_operator AS p ON u.refclassid = 'pg_operator'::regclass AND p.oid = u.refobjid
    UNION ALL
    SELECT u.relid::regclass::text, p.opcowner, u.what || ' uses operator class ' || p.opcname
    FROM used AS u
    JOIN pg_catalog.pg_opclass AS p ON u.refclassid = 'pg_opclass'::regclass AND p.oid = u.refobjid
    UNION ALL
    SELECT u.relid::regclass::text, t.typowner, u.what || ' has type ' || t.oid::regtype::text
    FROM used AS u JOIN pg_catalog.pg_type AS t ON u.refclassid = 'pg_type'::regclass AND t.oid = u.refobjid
    UNION ALL
    SELECT u.relid::regclass::text, c.relowner, u.what || ' uses ' || c.oid::regclass::text
    FROM used AS u
    JOIN pg_catalog.pg_class AS c ON u.refclassid = 'pg_class'::regclass AND c.oid = u.refobjid
    WHERE u.what LIKE 'rule %%' OR u.what LIKE 'policy %%'
)
SELECT DISTINCT object, pg_catalog.pg_get_userbyid(owner)::text AS owner, what
FROM found
WHERE owner NOT IN (SELECT oid FROM trusted)
ORDER BY what, object
