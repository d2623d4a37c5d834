-- Drop the connector's role. Fails while it owns something or holds rights anywhere.
DROP ROLE {role}
