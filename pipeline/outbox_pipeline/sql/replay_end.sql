-- Write into the log how many events a replay has published.
UPDATE {replay_log} SET events = %(events)s WHERE id = %(id)s
