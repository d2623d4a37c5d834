-- Let the role connect to the database. Needs ownership of the database.
GRANT CONNECT ON DATABASE {database} TO {role}
