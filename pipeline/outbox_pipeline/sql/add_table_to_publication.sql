-- Add the outbox to a publication; rows written before are not published. Needs ownership of both.
ALTER PUBLICATION {publication} ADD TABLE {table}
