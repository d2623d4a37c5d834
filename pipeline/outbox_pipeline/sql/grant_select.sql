-- Let the role read the outbox. Needs ownership of the table.
GRANT SELECT ON {table} TO {role}
