-- Keep these heads from ending before this transaction does, and say of which that is true; do not wait for those that are ending now.
SELECT position
FROM {job}
WHERE position = ANY(%(positions)b::bigint[]) AND state IN ('ready', 'later', 'leased')
FOR SHARE SKIP LOCKED
