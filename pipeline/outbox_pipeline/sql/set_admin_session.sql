-- Let this session be idle for as long as it takes, and find functions and operators in pg_catalog alone.
SELECT
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false),
    pg_catalog.set_config('idle_session_timeout', '0', false)
