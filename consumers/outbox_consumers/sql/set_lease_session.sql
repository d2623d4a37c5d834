-- Allow the session that renews a worker's lease to be idle in between, whatever the role's settings are.
SELECT set_config('idle_session_timeout', '0', false)
