-- Delete dead letters permanently. Their claims stay in the inbox, so the events are not handled again.
DELETE FROM {dead_letter} WHERE position = ANY(%(positions)s)
