-- Bound how long this session waits for a lock, in milliseconds, so that writers never queue behind it for long.
SELECT set_config('lock_timeout', %(milliseconds)s, false)
