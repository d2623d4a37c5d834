-- Read the last publisher of the outbox.
SELECT road FROM {road}
