-- Read the session whose snapshot keeps dead rows longest: its age in seconds, who it is.
SELECT
    extract(epoch FROM now() - xact_start)::float8 AS age_seconds, pid, usename AS "user",
    coalesce(application_name, '') AS application
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'
ORDER BY xact_start
LIMIT 1
