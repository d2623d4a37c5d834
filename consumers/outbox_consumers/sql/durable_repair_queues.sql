-- Make the first waiting job of each queue without a head new again, so that it is sorted. Only rows deleted by hand leave such queues.
UPDATE {job} AS job
SET state = 'new'
WHERE position = ANY(ARRAY(
    SELECT min(position)
    FROM {job} AS behind
    WHERE behind.consumer = %(consumer)s AND behind.state = 'waiting'
      AND NOT EXISTS (
          SELECT FROM {job} AS head
          WHERE head.consumer = behind.consumer AND head.queue = behind.queue
            AND head.state IN ('ready', 'later', 'leased') AND head.queue IS NOT NULL
      )
    GROUP BY behind.queue
))
  AND job.state = 'waiting'
