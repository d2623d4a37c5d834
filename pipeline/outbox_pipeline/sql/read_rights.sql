-- Read what the current role may do here: attributes, and rights on the database and the outbox's schema.
SELECT
    r.rolname AS role,
    r.rolsuper AS superuser,
    r.rolcreaterole AS createrole,
    r.rolreplication AS replication,
    has_database_privilege(current_database(), 'CREATE') AS create_in_database,
    pg_has_role(d.datdba, 'USAGE') AS owns_database,
    n.oid IS NOT NULL AS schema_exists,
    coalesce(has_schema_privilege(n.oid, 'CREATE'), false) AS create_in_schema,
    coalesce(pg_has_role(n.nspowner, 'USAGE'), false) AS owns_schema,
    (SELECT pg_has_role(r.oid, g.oid, 'MEMBER') FROM pg_roles AS g WHERE g.rolname = 'rds_replication')
        AS rds_replication
FROM pg_roles AS r
JOIN pg_database AS d ON d.datname = current_database()
LEFT JOIN pg_namespace AS n ON n.nspname = %(schema)s
WHERE r.rolname = current_user
