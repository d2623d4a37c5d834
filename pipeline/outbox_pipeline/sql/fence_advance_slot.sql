-- Move an idle slot on, over rows that the relay carries.
SELECT pg_replication_slot_advance(%(slot)s, %(lsn)s::pg_lsn)
