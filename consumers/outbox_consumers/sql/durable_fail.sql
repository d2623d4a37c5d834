-- Schedule another attempt for a job that this worker holds; the job stays the head of its queue.
UPDATE {job}
SET state = 'later', due_at = now() + make_interval(secs => %(delay)s), attempts = %(attempts)s,
    error = %(error)s, suspect = false, worker = NULL
WHERE position = %(position)s AND taken = %(token)s AND worker = %(worker)s
