-- List dead jobs, the longest dead first. A filter that is NULL matches all.
SELECT position, consumer, event_id, event_type, topic, partition, "offset", key, payload, headers, attempts,
       created_at AS first_failed_at, ended_at AS last_failed_at, COALESCE(error, '') AS error
FROM {job}
WHERE state = 'dead'
  AND (%(consumer)s::text IS NULL OR consumer = %(consumer)s)
  AND (%(event_type)s::text IS NULL OR event_type = %(event_type)s)
  AND (%(key)s::bytea IS NULL OR key = %(key)s)
  AND (%(event_id)s::uuid IS NULL OR event_id = %(event_id)s)
  AND (%(since)s::timestamptz IS NULL OR ended_at >= %(since)s)
  AND (%(error)s::text IS NULL OR position(%(error)s IN error) > 0)
ORDER BY ended_at, position
LIMIT %(limit)s
