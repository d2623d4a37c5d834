-- Read which transactions may have rows for the outbox that nobody sees yet: those with the lock of an INSERT. Reads pg_locks.
SELECT DISTINCT virtualtransaction
FROM pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (
        relation = %(table)s::regclass
        OR relation IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass))
    )
