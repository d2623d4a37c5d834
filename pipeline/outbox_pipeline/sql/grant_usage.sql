-- Let the role see into the schema. Needs ownership of the schema.
GRANT USAGE ON SCHEMA {schema} TO {role}
