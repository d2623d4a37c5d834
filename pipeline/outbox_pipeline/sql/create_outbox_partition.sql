-- Create the partition of one day. Fails while the default partition holds rows of that day.
CREATE TABLE {partition} PARTITION OF {table} FOR VALUES FROM ({first}) TO ({behind})
