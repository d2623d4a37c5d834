-- Take the lock for sorting this consumer's new jobs until the transaction ends, without waiting.
SELECT pg_try_advisory_xact_lock(hashtextextended(%(queue)s, 7239016554))
