-- Show this session as a worker of the relay: a shared advisory lock that every worker holds.
SELECT pg_advisory_lock_shared(hashtext(%(lock)s), 0)
