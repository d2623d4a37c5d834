-- Read the last position that the outbox's sequence has given out; no row where it hands out blocks. Not bound to a snapshot.
SELECT coalesce(pg_sequence_last_value(seqrelid), 0)
FROM pg_sequence
WHERE seqrelid = pg_get_serial_sequence(%(table)s, 'position')::regclass AND seqcache = 1
