-- Delete the attempt counts of events that did not crash the process.
DELETE FROM {attempt} WHERE consumer = %(consumer)s AND event_id = ANY(%(ids)s)
