-- Remove workers whose lease has expired and terminate their sessions, so that a frozen worker holds no locks. Terminates sessions of this role only.
WITH dead AS (
    DELETE FROM {worker}
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM {worker}
        WHERE consumer = %(consumer)s AND alive_until < now()
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING name, backend, backend_start
)
SELECT dead.name, pg_terminate_backend(session.pid) AS ended
FROM dead
LEFT JOIN pg_stat_activity AS session
    ON session.pid = dead.backend AND session.backend_start = dead.backend_start
   AND session.usename = current_user
