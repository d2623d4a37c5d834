-- List dead letters, oldest first. A filter that is NULL does not filter.
SELECT position, consumer, event_id, event_type, topic, partition, "offset", key, payload, headers, attempts,
       first_failed_at, last_failed_at, error
FROM {dead_letter}
WHERE (%(consumer)s::text IS NULL OR consumer = %(consumer)s)
  AND (%(event_type)s::text IS NULL OR event_type = %(event_type)s)
  AND (%(key)s::bytea IS NULL OR key = %(key)s)
  AND (%(event_id)s::uuid IS NULL OR event_id = %(event_id)s)
  AND (%(since)s::timestamptz IS NULL OR last_failed_at >= %(since)s)
  AND (%(error)s::text IS NULL OR position(%(error)s IN error) > 0)
ORDER BY position
LIMIT %(limit)s
