-- Let a role that sends the ticks write logical messages. Needs ownership of the function.
GRANT EXECUTE ON FUNCTION
    pg_catalog.pg_logical_emit_message(boolean, text, text),
    pg_catalog.pg_logical_emit_message(boolean, text, bytea)
TO {role}
