-- Read the attributes of a role, whether the current role may alter it, and whether it is in rds_replication.
SELECT
    r.rolcanlogin AS login,
    r.rolreplication AS replication,
    r.rolsuper AS superuser,
    r.rolcreaterole AS createrole,
    r.rolcreatedb AS createdb,
    r.rolbypassrls AS bypassrls,
    EXISTS (
        SELECT FROM pg_auth_members AS m
        JOIN pg_roles AS g ON g.oid = m.roleid
        WHERE m.member = r.oid AND g.rolname = 'rds_replication'
    ) AS rds_replication,
    EXISTS (
        SELECT FROM pg_auth_members AS m
        WHERE m.roleid = r.oid AND m.admin_option AND pg_has_role(m.member, 'USAGE')
    ) AS ours,
    r.rolvaliduntil < now() AS expired
FROM pg_roles AS r
WHERE r.rolname = %(name)s
