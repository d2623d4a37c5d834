-- Return those of these events that this consumer has handled.
SELECT uuid_send(event_id) FROM {inbox} WHERE consumer = %(consumer)s AND event_id = ANY(%(ids)s::uuid[])
