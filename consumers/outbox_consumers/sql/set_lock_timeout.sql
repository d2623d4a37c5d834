-- Limit how long this session waits for a lock.
SELECT set_config('lock_timeout', %(lock_timeout)s, false)
