-- Let nobody write logical messages into this database's log but who is granted it: a large one stops the connector. Needs ownership of the function.
REVOKE EXECUTE ON FUNCTION
    pg_catalog.pg_logical_emit_message(boolean, text, text, boolean),
    pg_catalog.pg_logical_emit_message(boolean, text, bytea, boolean)
FROM PUBLIC
