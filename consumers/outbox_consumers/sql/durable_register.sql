-- Register a worker with a lease that starts now, and the database session of its handlers.
INSERT INTO {worker} (consumer, name, alive_until, backend, backend_start)
SELECT %(consumer)s, %(name)s, now() + make_interval(secs => %(lease)s), pg_backend_pid(),
       (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
RETURNING id
