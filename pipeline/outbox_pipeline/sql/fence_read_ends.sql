-- Read the last position in the outbox and the end of the log.
SELECT (SELECT coalesce(max(position), 0) FROM {table}), pg_current_wal_insert_lsn()::text
