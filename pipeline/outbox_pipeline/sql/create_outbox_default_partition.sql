-- Create the partition for rows of days that have none of their own, so that no write ever fails.
CREATE TABLE {partition} PARTITION OF {table} DEFAULT
