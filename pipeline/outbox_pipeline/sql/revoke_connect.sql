-- Take the right to connect to the database back. Needs ownership of the database.
REVOKE CONNECT ON DATABASE {database} FROM {role}
