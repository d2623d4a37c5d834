-- Take the right to read the outbox back. Needs ownership of the table.
REVOKE SELECT ON {table} FROM {role}
