-- Forget dead letters for good. Their inbox rows stay, so they are not handled again.
DELETE FROM {dead_letter} WHERE position = ANY(%(positions)s)
