-- Decode the first transaction a slot would hand out, without consuming it. Needs REPLICATION; the slot must be idle.
SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
    %(slot)s, NULL, 1, 'proto_version', '1', 'publication_names', %(publication)s
)
