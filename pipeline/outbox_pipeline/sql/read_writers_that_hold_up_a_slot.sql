-- Read the open transactions that a new slot has to wait for, oldest first.
SELECT pid, usename AS "user", application_name AS application, (now() - xact_start)::text AS age
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
ORDER BY xact_start
