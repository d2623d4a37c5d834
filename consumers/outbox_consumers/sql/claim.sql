-- Mark events as handled by this consumer and return those that were not yet. Sorted, so that two batches never deadlock.
INSERT INTO {inbox} (event_id, consumer)
SELECT event_id, %(consumer)s FROM unnest(%(ids)s::uuid[]) AS event_id
ORDER BY event_id
ON CONFLICT DO NOTHING
RETURNING uuid_send(event_id)
