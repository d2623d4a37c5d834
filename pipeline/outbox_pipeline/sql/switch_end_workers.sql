-- End the sessions of the relay's workers, by the lock that each of them holds. Needs the same role, or pg_signal_backend.
SELECT count(pg_terminate_backend(pid))
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND objid = 0 AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid::bigint = (hashtext(%(lock)s)::bigint & 4294967295)
