-- Drop the stored publisher of an outbox that is gone.
DROP TABLE IF EXISTS {road}
