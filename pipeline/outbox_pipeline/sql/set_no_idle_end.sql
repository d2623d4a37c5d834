-- Let this session be idle for as long as it takes.
SELECT set_config('idle_session_timeout', '0', false)
