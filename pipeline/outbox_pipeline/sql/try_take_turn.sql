-- Take the session-level advisory lock of a pipeline, if nobody has it.
SELECT pg_try_advisory_lock(hashtextextended(%(key)s, 0)) AS taken
