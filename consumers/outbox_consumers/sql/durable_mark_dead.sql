-- Make a job that this worker holds dead, and keep it with its error.
UPDATE {job}
SET state = 'dead', ended_at = now(), attempts = %(attempts)s, error = %(error)s, worker = NULL
WHERE position = %(position)s AND taken = %(token)s AND worker = %(worker)s
RETURNING queue
