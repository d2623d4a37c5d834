-- Read the open transactions that have written, oldest first: a new slot waits for them, an old one keeps their WAL.
SELECT
    pid,
    coalesce(usename, 'an unknown role') AS "user",
    coalesce(application_name, '') AS application,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_seconds
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start
