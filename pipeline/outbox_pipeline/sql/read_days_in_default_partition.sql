-- Read the days, from one on, whose rows went to the default partition. Scans that partition, which is usually empty.
SELECT DISTINCT to_char(occurred_at AT TIME ZONE 'UTC', 'YYYYMMDD')
FROM {table}
WHERE occurred_at >= %(first)s AND isfinite(occurred_at)
