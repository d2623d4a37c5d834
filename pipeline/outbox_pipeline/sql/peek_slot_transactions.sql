-- Read, without consuming, the transactions an idle slot still holds: where each commits, how many rows it has. Needs REPLICATION; decodes all WAL the slot keeps.
WITH message AS (
    SELECT
        p.lsn,
        p.xid,
        chr(get_byte(p.data, 0)) AS kind,
        CASE WHEN get_byte(p.data, 0) = ascii('B') THEN substring(p.data FROM 2 FOR 8) END AS commit_at
    FROM pg_logical_slot_peek_binary_changes(
        %(slot)s, NULL, NULL, 'proto_version', '1', 'publication_names', %(publication)s
    ) AS p
)
SELECT
    max(('x' || encode(m.commit_at, 'hex'))::bit(64)::bigint) AS commit_at,
    count(*) FILTER (WHERE m.kind = 'I') AS rows,
    count(*) FILTER (WHERE m.kind = 'I' AND m.lsn <= %(position)s::text::pg_lsn) AS rows_up_to_position,
    count(*) FILTER (
        WHERE m.kind = 'I' AND m.xid::text = %(stored_xid)s AND m.lsn <= %(stored)s::text::pg_lsn
    ) AS rows_delivered,
    bool_or(m.kind = 'I' AND m.lsn = %(position)s::text::pg_lsn)
        AND NOT bool_or(m.kind = 'B' AND m.lsn = %(position)s::text::pg_lsn) AS meets_position
FROM message AS m
GROUP BY m.xid::text
ORDER BY commit_at
