-- Take the right to see into the schema back. Needs ownership of the schema.
REVOKE USAGE ON SCHEMA {schema} FROM {role}
