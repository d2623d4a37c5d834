-- Let the role write events: INSERT only, the outbox is append-only. Needs ownership of the table.
GRANT INSERT ON {table} TO {role}
