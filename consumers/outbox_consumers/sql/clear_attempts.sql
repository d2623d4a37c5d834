-- Forget the attempts of events that nobody has to be afraid of any more.
DELETE FROM {attempt} WHERE consumer = %(consumer)s AND event_id = ANY(%(ids)s)
