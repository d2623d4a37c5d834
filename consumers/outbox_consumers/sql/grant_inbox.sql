-- Let a role run consumers on the inbox.
GRANT SELECT, INSERT, DELETE ON {inbox} TO {role}
