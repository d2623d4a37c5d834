-- Lease the first ready jobs for a registered worker. How often a job was taken is its fencing token.
UPDATE {job}
SET state = 'leased', worker = %(worker)s, taken = taken + 1
WHERE position = ANY(ARRAY(
    SELECT position
    FROM {job}
    WHERE consumer = %(consumer)s AND state = 'ready'
      AND EXISTS (SELECT FROM {worker} WHERE id = %(worker)s)
    ORDER BY priority DESC, position
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
))
RETURNING position, taken, attempts, suspect, priority, uuid_send(event_id) AS event_id, event_type, topic,
          partition, "offset", key, payload, headers
