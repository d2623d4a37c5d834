-- Delete the claims of these ids, so that the consumer handles their events again.
DELETE FROM {inbox} WHERE consumer = %(consumer)s AND event_id = ANY(%(ids)s)
