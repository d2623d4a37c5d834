-- Record a failed attempt of a parked event and when the next one is due.
UPDATE {parked}
SET attempts = %(attempts)s, error = %(error)s, last_failed_at = now(),
    due_at = now() + make_interval(secs => %(delay)s)
WHERE position = %(position)s
