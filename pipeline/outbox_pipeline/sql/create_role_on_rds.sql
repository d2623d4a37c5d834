-- Create the connector's role on Amazon RDS, where no customer's role may have REPLICATION. Needs CREATEROLE.
CREATE ROLE {role} LOGIN NOCREATEDB NOCREATEROLE PASSWORD {verifier}
