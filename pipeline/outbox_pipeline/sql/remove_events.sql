-- Delete events that this transaction has written, so that only the log has them; they stay where a relay is set up, which reads rows. Needs DELETE and SELECT (id) on the table.
DELETE FROM {table}
WHERE id = ANY (CAST(%(ids)s AS uuid[])) AND to_regclass(%(relay_settings)s) IS NULL
