-- Read the UUIDv7 below which the inbox remembers nothing any more.
SELECT uuid_send(before_id) FROM {journal} WHERE action = 'dropped' ORDER BY before_id DESC LIMIT 1
