-- Move an idle slot forward, past rows that the relay or recover publishes.
SELECT pg_replication_slot_advance(%(slot)s, %(lsn)s::pg_lsn)
