-- Read the ids that a consumer has applied, as 16 bytes.
SELECT uuid_send(event_id) FROM {inbox} WHERE %(consumer)s::text IS NULL OR consumer = %(consumer)s
