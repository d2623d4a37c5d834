-- Make these jobs the heads of their queues.
UPDATE {job}
SET state = CASE WHEN due_at > now() THEN 'later' ELSE 'ready' END
WHERE position = ANY(%(positions)b::bigint[])
