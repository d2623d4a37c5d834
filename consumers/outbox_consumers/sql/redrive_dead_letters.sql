-- Move dead letters to the queues of their aggregates, in order; the consumer handles them from there.
WITH taken AS (
    DELETE FROM {dead_letter} WHERE position = ANY(%(positions)s) RETURNING *
)
INSERT INTO {parked} (
    consumer, event_id, event_type, topic, partition, "offset", key, payload, headers,
    attempts, first_failed_at, last_failed_at, error, queue, due_at
)
SELECT consumer, event_id, event_type, topic, partition, "offset", key, payload, headers,
       0, first_failed_at, last_failed_at, error,
       CASE WHEN octet_length(queue) > 2000 THEN sha256(queue) ELSE queue END,
       now() + make_interval(secs => (row_number() OVER (ORDER BY position) - 1) * %(interval)s)
FROM taken
CROSS JOIN LATERAL (
    SELECT COALESCE(convert_to(topic, 'UTF8') || '\x00'::bytea || key, uuid_send(event_id)) AS queue
) AS named
ORDER BY position
