-- Set the time-outs that keep a stuck consumer from blocking others, and the settings that this session relies on.
SELECT set_config('lock_timeout', %(lock_timeout)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, false),
       set_config('idle_session_timeout', '0', false),
       set_config('DateStyle', 'ISO', false),
       set_config('synchronous_commit', %(synchronous_commit)s, false),
       set_config('default_transaction_isolation', 'read committed', false)
