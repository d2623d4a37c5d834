-- Delete the claims of ids of a time range, so that the consumer handles their events again.
DELETE FROM {inbox} WHERE consumer = %(consumer)s AND event_id >= %(first)s AND event_id < %(behind)s
