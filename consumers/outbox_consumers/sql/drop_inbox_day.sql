-- Drop the partition of one day. Locks the inbox for a moment; needs its ownership.
DROP TABLE {partition}
