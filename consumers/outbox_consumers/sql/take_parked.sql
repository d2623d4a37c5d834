-- Lock the first event of a queue that is due and not locked by another process.
SELECT position, uuid_send(event_id) AS event_id, event_type, topic, partition, "offset", key, payload, headers,
       attempts, first_failed_at, queue
FROM {parked} AS p
WHERE consumer = %(consumer)s
  AND due_at <= now()
  AND NOT EXISTS (
      SELECT FROM {parked} AS before
      WHERE before.consumer = p.consumer AND before.queue = p.queue AND before.position < p.position
  )
ORDER BY due_at
LIMIT 1
FOR UPDATE SKIP LOCKED
