-- Create the connector's role: it may log in and read replication slots. Needs CREATEROLE with REPLICATION, or a superuser.
CREATE ROLE {role} LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD {verifier}
