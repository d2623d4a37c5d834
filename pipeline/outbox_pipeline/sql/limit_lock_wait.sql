-- Limit how long each statement of this transaction waits for a lock, in milliseconds.
SELECT set_config('lock_timeout', %(milliseconds)s, true)
