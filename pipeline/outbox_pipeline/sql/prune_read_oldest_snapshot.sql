-- Read the oldest transaction of this database, prepared ones included, for whose sake deleted rows are kept: its age in seconds, whose it is.
SELECT age_seconds, who
FROM (
    SELECT
        extract(epoch FROM now() - xact_start)::float8 AS age_seconds,
        'pid ' || pid || ' (' || usename || coalesce(', ' || nullif(application_name, ''), '') || ')' AS who
    FROM pg_stat_activity
    WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        AND pid <> pg_backend_pid()
        AND datname = current_database()
        AND xact_start IS NOT NULL
        AND backend_type = 'client backend'
    UNION ALL
    SELECT extract(epoch FROM now() - prepared)::float8, 'prepared transaction ' || gid || ' (' || owner || ')'
    FROM pg_prepared_xacts
    WHERE database = current_database()
) AS open
ORDER BY age_seconds DESC
LIMIT 1
