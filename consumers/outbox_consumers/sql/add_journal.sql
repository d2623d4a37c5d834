-- Record in the journal what was deleted from the inbox.
INSERT INTO {journal} (action, before_id, detail) VALUES (%(action)s, %(before)s, %(detail)s)
