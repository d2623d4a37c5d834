-- Leave an event at the head of its queue and try it again later.
UPDATE {parked}
SET attempts = %(attempts)s, error = %(error)s, last_failed_at = now(),
    due_at = now() + make_interval(secs => %(delay)s)
WHERE position = %(position)s
