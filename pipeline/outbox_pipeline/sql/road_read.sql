-- Read which road published the outbox last.
SELECT road FROM {road}
