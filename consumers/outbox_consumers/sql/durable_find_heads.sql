-- Find the head of each of these queues; NULL for a queue without one. One subquery for each queue, so that every plan uses the index.
SELECT (
    SELECT head.position
    FROM {job} AS head
    WHERE head.consumer = %(consumer)s AND head.queue = wanted.queue
      AND head.state IN ('ready', 'later', 'leased') AND head.queue IS NOT NULL
)
FROM unnest(%(queues)b::bytea[]) WITH ORDINALITY AS wanted(queue, place)
ORDER BY wanted.place
