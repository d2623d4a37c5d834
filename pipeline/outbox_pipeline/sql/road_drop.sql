-- Drop what was written down about an outbox that is gone.
DROP TABLE IF EXISTS {road}
