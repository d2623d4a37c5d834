-- Park an event in the queue of its aggregate.
INSERT INTO {parked} (
    consumer, event_id, event_type, topic, partition, "offset", key, payload, headers,
    attempts, first_failed_at, last_failed_at, error, queue, due_at
) VALUES (
    %(consumer)s, %(event_id)s, %(event_type)s, %(topic)s, %(partition)s, %(offset)s, %(key)s, %(payload)s,
    %(headers)s, %(attempts)s, %(first_failed_at)s, now(), %(error)s, %(queue)s,
    now() + make_interval(secs => %(delay)s)
)
