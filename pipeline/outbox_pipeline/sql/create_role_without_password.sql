-- Create the connector's role; its password is not part of this script, set it with \password.
CREATE ROLE {role} LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE
