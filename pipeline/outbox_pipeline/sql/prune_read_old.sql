-- Read the ids of rows older than a moment in a range of pages, packed, and the time of the oldest event.
SELECT string_agg(uuid_send(id), ''::bytea) AS packed, min(occurred_at) AS oldest
FROM {table}
WHERE ctid >= %(from_row)s::tid AND ctid < %(to_row)s::tid AND {moment} < %(before)s
