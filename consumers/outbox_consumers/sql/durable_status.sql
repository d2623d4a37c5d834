-- Count the jobs of one consumer, or of all, by state, with the age of the oldest in seconds. Reads the whole table.
SELECT consumer, state, count(*) AS jobs, extract(epoch FROM now() - min(created_at))::float8 AS oldest
FROM {job}
WHERE %(consumer)s::text IS NULL OR consumer = %(consumer)s
GROUP BY consumer, state
ORDER BY consumer, state
