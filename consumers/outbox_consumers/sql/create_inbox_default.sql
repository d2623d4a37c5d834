-- Create the partition for ids that no day has: random ones, and those of days not made ahead.
CREATE TABLE IF NOT EXISTS {partition} PARTITION OF {inbox} DEFAULT
