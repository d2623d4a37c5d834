-- Create the partition for all other ids: random ones, and those of days without a partition.
CREATE TABLE IF NOT EXISTS {partition} PARTITION OF {inbox} DEFAULT
