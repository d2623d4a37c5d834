-- Find the rights that the current role lacks: on tables that exist, and CREATE where one is still to be made.
SELECT w.name, w.privilege
FROM unnest(%(names)s::text[], %(privileges)s::text[]) AS w (name, privilege)
WHERE to_regclass(w.name) IS NOT NULL AND NOT has_table_privilege(to_regclass(w.name)::oid, w.privilege)
UNION
SELECT 'schema ' || %(schema)s, 'CREATE'
FROM unnest(%(names)s::text[]) AS w (name)
JOIN pg_namespace AS n ON n.nspname = %(schema)s
WHERE to_regclass(w.name) IS NULL AND NOT has_schema_privilege(n.oid, 'CREATE')
ORDER BY 1, 2
