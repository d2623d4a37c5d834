-- Let events of a consumer be handled again: by id.
DELETE FROM {inbox} WHERE consumer = %(consumer)s AND event_id = ANY(%(ids)s)
