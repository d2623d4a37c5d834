-- Let a role run consumers on the inbox and its companions.
GRANT SELECT, INSERT, UPDATE, DELETE
ON {inbox}, {dead_letter}, {parked}, {journal}, {member}, {attempt} TO {role}
