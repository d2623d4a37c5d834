-- Put new jobs into their queues: the first of a queue without a head becomes its head, the others wait behind it. A queue whose head is being finished right now is left for the next time, so this waits for no row lock.
WITH fresh AS MATERIALIZED (
    SELECT position, queue
    FROM {job}
    WHERE consumer = %(consumer)s AND state = 'new'
    ORDER BY position
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
queues AS MATERIALIZED (
    SELECT queue, min(position) AS first FROM fresh GROUP BY queue
),
held AS MATERIALIZED (
    SELECT head.queue
    FROM queues
    JOIN {job} AS head ON head.consumer = %(consumer)s AND head.queue = queues.queue
    WHERE head.state IN ('ready', 'later', 'leased') AND head.queue IS NOT NULL
    FOR SHARE OF head SKIP LOCKED
),
idle AS MATERIALIZED (
    SELECT queues.queue, queues.first
    FROM queues
    WHERE NOT EXISTS (
        SELECT FROM {job} AS head
        WHERE head.consumer = %(consumer)s AND head.queue = queues.queue
          AND head.state IN ('ready', 'later', 'leased') AND head.queue IS NOT NULL
    )
)
UPDATE {job} AS job
SET state = CASE
        WHEN fresh.position IS DISTINCT FROM idle.first THEN 'waiting'
        WHEN job.due_at > now() THEN 'later'
        ELSE 'ready'
    END
FROM fresh
LEFT JOIN held ON held.queue = fresh.queue
LEFT JOIN idle ON idle.queue = fresh.queue
WHERE job.position = fresh.position AND (held.queue IS NOT NULL OR idle.queue IS NOT NULL)
