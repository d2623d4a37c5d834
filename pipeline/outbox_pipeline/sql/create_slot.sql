-- Create the slot: from here on the server keeps WAL. Waits for open transactions that have written; needs REPLICATION.
SELECT lsn::text FROM pg_create_logical_replication_slot({slot}, 'pgoutput')
