-- Become the only one who sorts this consumer's new jobs, until the transaction ends; do not wait.
SELECT pg_try_advisory_xact_lock(hashtextextended(%(queue)s, 7239016554))
