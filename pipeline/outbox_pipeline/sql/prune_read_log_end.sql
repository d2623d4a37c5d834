-- Read how far the log reaches: whatever this session can see was committed before. And how far the slot is confirmed.
SELECT
    pg_current_wal_insert_lsn()::text AS log_end,
    (SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %(slot)s) AS confirmed
