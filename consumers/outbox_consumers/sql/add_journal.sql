-- Note what was taken out of the inbox.
INSERT INTO {journal} (action, before_id, detail) VALUES (%(action)s, %(before)s, %(detail)s)
