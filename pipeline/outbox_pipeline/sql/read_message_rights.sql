-- Read who may write logical messages: PUBLIC, those of some roles who may not by a grant of their own, and roles that tick now and may only as PUBLIC.
WITH function AS (
    SELECT p.oid, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl
    FROM pg_proc AS p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = 'pg_logical_emit_message'
),
lacking AS (
    SELECT DISTINCT r.rolname
    FROM pg_roles AS r
    CROSS JOIN function AS f
    WHERE NOT EXISTS (
        SELECT FROM aclexplode(f.acl) AS granted
        WHERE granted.grantee <> 0
            AND granted.privilege_type = 'EXECUTE'
            AND pg_has_role(r.oid, granted.grantee, 'USAGE')
    )
)
SELECT
    (
        SELECT bool_or(granted.grantee = 0 AND granted.privilege_type = 'EXECUTE')
        FROM function AS f CROSS JOIN aclexplode(f.acl) AS granted
    ) AS public,
    (SELECT bool_and(pg_has_role(f.proowner, 'USAGE')) FROM function AS f) AS ours,
    ARRAY(
        SELECT l.rolname::text FROM lacking AS l WHERE l.rolname = ANY(%(roles)s::text[]) ORDER BY 1
    ) AS lacking,
    ARRAY(
        SELECT DISTINCT a.usename::text
        FROM pg_stat_activity AS a
        JOIN lacking AS l ON l.rolname = a.usename
        WHERE a.datname = current_database() AND a.application_name = %(ticker)s
        ORDER BY 1
    ) AS ticking
