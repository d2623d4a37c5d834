-- Read the last position of the outbox's sequence; no row where it gives blocks of positions to sessions. Not bound to a snapshot.
SELECT coalesce(pg_sequence_last_value(seqrelid), 0)
FROM pg_sequence
WHERE seqrelid = pg_get_serial_sequence(%(table)s, 'position')::regclass AND seqcache = 1
