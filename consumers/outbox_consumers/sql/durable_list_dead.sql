-- List dead jobs, the longest dead first. A filter that is NULL does not filter.
SELECT position, event_id, event_type, topic, partition, "offset", key, payload, headers, attempts, created_at,
       ended_at, error
FROM {job}
WHERE consumer = %(consumer)s AND state = 'dead' AND (%(event_type)s::text IS NULL OR event_type = %(event_type)s)
ORDER BY ended_at, position
LIMIT %(limit)s
