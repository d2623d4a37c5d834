-- Grant a role the rights to run consumers on the inbox and the tables that belong to it.
GRANT SELECT, INSERT, UPDATE, DELETE
ON {inbox}, {dead_letter}, {parked}, {journal}, {member}, {attempt} TO {role}
