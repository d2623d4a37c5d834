-- Read who has the advisory lock of a pipeline.
SELECT a.pid, a.usename AS "user", a.application_name AS application, host(a.client_addr) AS address
FROM pg_locks AS l
JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory'
    AND l.granted
    AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended(%(key)s, 0)
