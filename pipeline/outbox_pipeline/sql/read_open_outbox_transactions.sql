-- Read the open and the prepared transactions that have written a published table, oldest first. Locks no table.
WITH RECURSIVE published AS (
    SELECT c.oid
    FROM pg_publication_tables AS t
    JOIN pg_namespace AS n ON n.nspname = t.schemaname
    JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = %(publication)s
    UNION
    SELECT i.inhrelid
    FROM pg_inherits AS i
    JOIN published AS p ON i.inhparent = p.oid
),
writer AS (
    SELECT DISTINCT l.pid, l.virtualtransaction
    FROM pg_locks AS l
    JOIN published AS t ON l.relation = t.oid
    WHERE l.locktype = 'relation'
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        AND l.mode = 'RowExclusiveLock'
        AND l.granted
)
SELECT
    a.pid,
    NULL::text AS gid,
    coalesce(a.usename::text, '') AS "user",
    coalesce(a.application_name, '') AS application,
    coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8 AS age_seconds
FROM writer AS w
JOIN pg_stat_activity AS a ON a.pid = w.pid
WHERE a.pid <> pg_backend_pid()
    AND EXISTS (
        SELECT FROM pg_locks AS x
        WHERE x.locktype = 'transactionid' AND x.pid = w.pid AND x.mode = 'ExclusiveLock'
    )
UNION ALL
SELECT
    NULL::int,
    p.gid,
    coalesce(p.owner::text, ''),
    '',
    extract(epoch FROM clock_timestamp() - p.prepared)::float8
FROM writer AS w
JOIN pg_locks AS x ON x.virtualtransaction = w.virtualtransaction AND x.pid IS NULL
JOIN pg_prepared_xacts AS p ON p.transaction = x.transactionid
WHERE w.pid IS NULL AND x.locktype = 'transactionid'
ORDER BY age_seconds DESC
