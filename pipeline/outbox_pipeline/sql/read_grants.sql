-- Read what a role may do with the database, the schema and the outbox. NULL where the object is missing.
SELECT
    has_database_privilege(r.oid, d.oid, 'CONNECT') AS connect,
    has_schema_privilege(r.oid, n.oid, 'USAGE') AS usage,
    has_table_privilege(r.oid, c.oid, 'SELECT') AS "select",
    has_table_privilege(r.oid, c.oid, 'INSERT') AS "insert",
    pg_has_role(d.datdba, 'USAGE') AS owns_database,
    coalesce(pg_has_role(n.nspowner, 'USAGE'), false) AS owns_schema,
    coalesce(pg_has_role(c.relowner, 'USAGE'), true) AS owns_table
FROM pg_roles AS r
JOIN pg_database AS d ON d.datname = current_database()
LEFT JOIN pg_namespace AS n ON n.nspname = %(schema)s
LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = %(table)s
WHERE r.rolname = %(role)s
