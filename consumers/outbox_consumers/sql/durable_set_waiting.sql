-- Put new jobs behind the head of their queue.
UPDATE {job} SET state = 'waiting' WHERE position = ANY(%(positions)b::bigint[])
