-- Publish the inserts of the outbox. Needs ownership of the table and CREATE on the database.
CREATE PUBLICATION {publication} FOR TABLE {table} WITH (publish = 'insert')
