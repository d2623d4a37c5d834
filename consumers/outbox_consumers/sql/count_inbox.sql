-- Count the rows of each consumer. Reads the whole inbox.
SELECT consumer, count(*) AS events, min(received_at) AS first_received, max(received_at) AS last_received
FROM {inbox}
GROUP BY consumer
ORDER BY consumer
