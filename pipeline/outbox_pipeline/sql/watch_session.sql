-- Bound what the watch's session may do: read only, no long statement, no waiting behind a lock; idle for as long as it takes, names of PostgreSQL alone.
SELECT
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', FALSE),
    pg_catalog.set_config('default_transaction_read_only', 'on', FALSE),
    pg_catalog.set_config('statement_timeout', %(statement_timeout)s, FALSE),
    pg_catalog.set_config('lock_timeout', %(lock_timeout)s, FALSE),
    pg_catalog.set_config('idle_in_transaction_session_timeout', '10s', FALSE),
    pg_catalog.set_config('idle_session_timeout', '0', FALSE)
