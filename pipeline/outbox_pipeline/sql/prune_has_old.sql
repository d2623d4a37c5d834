-- Read whether a table has rows older than a moment.
SELECT EXISTS (SELECT FROM {table} WHERE {moment} < %(before)s) AS there
