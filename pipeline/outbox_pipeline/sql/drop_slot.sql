-- Drop the slot and free the WAL it kept; what was not read is gone for the connector. Needs REPLICATION.
SELECT pg_drop_replication_slot({slot})
