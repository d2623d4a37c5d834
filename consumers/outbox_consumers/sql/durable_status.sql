-- Count the jobs of a consumer by state, with the age of the oldest in seconds. Reads all of its rows.
SELECT state, count(*) AS jobs, extract(epoch FROM now() - min(created_at))::float8 AS oldest
FROM {job}
WHERE consumer = %(consumer)s
GROUP BY state
