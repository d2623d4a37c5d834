-- Make the first waiting job of each of these queues its head. Run it after the statement that ended the previous head, so that it sees jobs added meanwhile.
UPDATE {job}
SET state = CASE WHEN due_at > now() THEN 'later' ELSE 'ready' END
WHERE position = ANY(ARRAY(
    SELECT (
        SELECT behind.position
        FROM {job} AS behind
        WHERE behind.consumer = %(consumer)s AND behind.queue = ended.queue
          AND behind.state IN ('new', 'waiting')
        ORDER BY behind.position
        LIMIT 1
    )
    FROM unnest(%(queues)b::bytea[]) AS ended(queue)
))
