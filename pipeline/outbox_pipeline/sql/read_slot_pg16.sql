-- Read a replication slot and who uses it (PostgreSQL 16).
SELECT
    s.plugin,
    s.slot_type AS kind,
    s.database,
    s.temporary,
    s.active,
    s.active_pid,
    a.usename AS active_user,
    a.application_name AS active_application,
    s.wal_status,
    s.restart_lsn::text,
    s.confirmed_flush_lsn::text,
    s.safe_wal_size,
    s.conflicting,
    NULL::text AS invalidation_reason,
    NULL::boolean AS failover,
    NULL::timestamptz AS inactive_since
FROM pg_replication_slots AS s
LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.slot_name = %(name)s
