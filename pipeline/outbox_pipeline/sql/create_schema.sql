-- Create the schema of the outbox table. Needs CREATE on the database.
CREATE SCHEMA {schema}
