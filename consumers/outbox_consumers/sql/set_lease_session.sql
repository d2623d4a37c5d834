-- Let the session that keeps a worker's lease be idle between two beats, whatever the role's settings are.
SELECT set_config('idle_session_timeout', '0', false)
