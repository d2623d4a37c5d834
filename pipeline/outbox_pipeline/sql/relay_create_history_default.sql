-- Create the partition of the history for rows of days that have none of their own.
CREATE TABLE {history_default} PARTITION OF {history} DEFAULT
