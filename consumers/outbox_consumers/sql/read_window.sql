-- Read below which UUIDv7 ids the inbox no longer remembers anything.
SELECT uuid_send(before_id) FROM {journal} WHERE action = 'dropped' ORDER BY before_id DESC LIMIT 1
