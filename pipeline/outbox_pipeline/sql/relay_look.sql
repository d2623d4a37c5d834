-- Read how many workers the relay has, which shards have an owner, which of them are this session's, and whether a connector has come. Reads pg_locks.
SELECT
    count(*) FILTER (WHERE objid = 0) AS workers,
    coalesce(array_agg(objid::bigint - 1) FILTER (WHERE objid > 0), ARRAY[]::bigint[]) AS held,
    coalesce(array_agg(objid::bigint - 1) FILTER (WHERE objid > 0 AND pid = pg_backend_pid()), ARRAY[]::bigint[]) AS mine,
    EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s) AS slot
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = (hashtext(%(lock)s)::bigint & 4294967295)
