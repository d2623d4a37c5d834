-- Prepare the relay's session: how values print, plans that keep to the relay's index, commits that last, an end for a frozen owner.
SELECT
    set_config('TimeZone', 'UTC', false),
    set_config('DateStyle', 'ISO', false),
    set_config('enable_seqscan', 'off', false),
    set_config('enable_bitmapscan', 'off', false),
    set_config('jit', 'off', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
    set_config('tcp_user_timeout', %(idle_milliseconds)s, false),
    set_config('idle_session_timeout', %(idle_milliseconds)s, false),
    set_config('idle_in_transaction_session_timeout', %(idle_milliseconds)s, false)
