-- Lock and read the oldest jobs that are not yet sorted into their queue.
SELECT position, queue
FROM {job}
WHERE consumer = %(consumer)s AND state = 'new'
ORDER BY position
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
