-- Find the largest logical message that an idle slot still holds, without consuming it: prefix and size. Needs REPLICATION; decodes all WAL the slot keeps.
SELECT
    convert_from(
        substring(m.data FROM 11 FOR position('\x00'::bytea IN substring(m.data FROM 11)) - 1), 'SQL_ASCII'
    ) AS prefix,
    octet_length(m.data) AS bytes
FROM pg_logical_slot_peek_binary_changes(
    %(slot)s, NULL, NULL, 'proto_version', '1', 'publication_names', %(publication)s, 'messages', 'true'
) AS m
WHERE get_byte(m.data, 0) = ascii('M')
ORDER BY octet_length(m.data) DESC
LIMIT 1
