-- Bound what the watch's session may do: read only, no long statement, no waiting behind a lock; idle for as long as it takes.
SELECT
    set_config('default_transaction_read_only', 'on', FALSE),
    set_config('statement_timeout', %(statement_timeout)s, FALSE),
    set_config('lock_timeout', %(lock_timeout)s, FALSE),
    set_config('idle_in_transaction_session_timeout', '10s', FALSE),
    set_config('idle_session_timeout', '0', FALSE)
