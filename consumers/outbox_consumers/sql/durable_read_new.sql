-- Lock the oldest jobs that are not in their queue yet.
SELECT position, queue
FROM {job}
WHERE consumer = %(consumer)s AND state = 'new'
ORDER BY position
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
