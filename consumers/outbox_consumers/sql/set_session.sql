-- Set what keeps a stuck consumer from holding others up: how long it may wait for a lock, and idle in a transaction.
SELECT set_config('lock_timeout', %(lock_timeout)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, false),
       set_config('synchronous_commit', %(synchronous_commit)s, false),
       set_config('default_transaction_isolation', 'read committed', false)
