-- Count the workers of each consumer whose lease holds.
SELECT consumer, count(*) FROM {worker} WHERE alive_until > now() GROUP BY consumer
