-- Let events of a consumer be handled again: those whose ids are of a time.
DELETE FROM {inbox} WHERE consumer = %(consumer)s AND event_id >= %(first)s AND event_id < %(behind)s
