-- Create the partition for one day's UUIDv7 ids. Locks the inbox and its default partition for a moment; needs its ownership.
CREATE TABLE IF NOT EXISTS {partition} PARTITION OF {inbox} FOR VALUES FROM ({first}) TO ({behind})
