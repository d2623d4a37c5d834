-- Release this consumer's claims of these events. Needs DELETE on the inbox.
DELETE FROM {inbox} WHERE consumer = %(consumer)s AND event_id = ANY(%(ids)s::uuid[])
