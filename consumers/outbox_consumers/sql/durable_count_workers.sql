-- Count the workers of each consumer whose lease has not expired.
SELECT consumer, count(*) FROM {worker} WHERE alive_until > now() GROUP BY consumer
