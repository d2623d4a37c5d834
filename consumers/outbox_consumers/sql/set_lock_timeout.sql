-- Bound how long this transaction waits for a lock, so that consumers never queue behind it for long.
SELECT set_config('lock_timeout', %(lock_timeout)s, true)
