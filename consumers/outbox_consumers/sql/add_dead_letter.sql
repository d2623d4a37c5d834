-- Add a dead letter; nothing happens if the event is one already.
INSERT INTO {dead_letter} (
    consumer, event_id, event_type, topic, partition, "offset", key, payload, headers,
    attempts, first_failed_at, last_failed_at, error
) VALUES (
    %(consumer)s, %(event_id)s, %(event_type)s, %(topic)s, %(partition)s, %(offset)s, %(key)s, %(payload)s,
    %(headers)s, %(attempts)s, %(first_failed_at)s, now(), %(error)s
)
ON CONFLICT (consumer, event_id) DO NOTHING
