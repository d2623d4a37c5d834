-- Allow a role to add, take and finish jobs.
GRANT SELECT, INSERT, UPDATE, DELETE ON {job}, {worker} TO {role}
