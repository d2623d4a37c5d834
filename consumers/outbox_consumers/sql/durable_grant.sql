-- Let a role put, take and finish jobs.
GRANT SELECT, INSERT, UPDATE, DELETE ON {job}, {worker} TO {role}
