-- Read whether an outbox has no rows.
SELECT NOT EXISTS (SELECT FROM {table}) AS empty
