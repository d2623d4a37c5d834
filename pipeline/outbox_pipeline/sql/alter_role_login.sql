-- Let the role log in and read replication slots. Needs ADMIN on the role with REPLICATION, or a superuser.
ALTER ROLE {role} LOGIN REPLICATION
