-- Show this session as a worker of the relay, by a shared advisory lock that every worker holds, unless a switch keeps workers out.
SELECT pg_try_advisory_lock_shared(hashtext(%(lock)s), 0) AS entered
