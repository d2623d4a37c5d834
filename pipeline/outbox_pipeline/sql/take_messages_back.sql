-- Take the right to write logical messages from a role, so that it can be dropped. Needs ownership of the function.
REVOKE EXECUTE ON FUNCTION
    pg_catalog.pg_logical_emit_message(boolean, text, text),
    pg_catalog.pg_logical_emit_message(boolean, text, bytea)
FROM {role}
