-- Lock these heads so that they cannot end before this transaction does, and return those that were locked; skip those that are being ended.
SELECT position
FROM {job}
WHERE position = ANY(%(positions)b::bigint[]) AND state IN ('ready', 'later', 'leased')
FOR SHARE SKIP LOCKED
