-- Drop the outbox table with every event in it. Needs ownership of the table.
DROP TABLE {table}
