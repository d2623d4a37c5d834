-- Read the age of the oldest row of the outbox, in seconds. Needs SELECT on it; AccessShare. Ids are UUIDv7, so
-- the primary key finds it.
SELECT extract(epoch FROM clock_timestamp() - occurred_at) AS seconds FROM {table} ORDER BY id LIMIT 1
