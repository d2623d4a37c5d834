-- Write into the log that a replay begins.
INSERT INTO {replay_log} (reason, selection) VALUES (%(reason)s, %(selection)s) RETURNING id
