-- Count an attempt before it is made, so that the count survives a crash of the process.
INSERT INTO {attempt} AS a (event_id, consumer) VALUES (%(event_id)s, %(consumer)s)
ON CONFLICT (event_id, consumer) DO UPDATE SET attempts = a.attempts + 1, last_at = now()
RETURNING attempts
