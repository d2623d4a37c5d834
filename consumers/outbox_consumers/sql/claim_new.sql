-- Mark events as handled by this consumer; fails with 23505 when one of them already is. Sorted, so that two batches never deadlock.
INSERT INTO {inbox} (event_id, consumer)
SELECT event_id, %(consumer)s FROM unnest(%(ids)s::uuid[]) AS event_id
ORDER BY event_id
