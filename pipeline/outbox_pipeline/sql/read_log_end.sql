-- Read the end of the write-ahead log: written on a primary, replayed on a standby.
SELECT (
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END
)::text AS position
