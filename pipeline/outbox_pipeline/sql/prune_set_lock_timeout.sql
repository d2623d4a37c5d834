-- Give up waiting for a lock after a while, in this transaction.
SELECT set_config('lock_timeout', %(milliseconds)s, true)
