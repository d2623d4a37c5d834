-- Forget one day's events for good. Locks the inbox for a moment; needs its ownership.
DROP TABLE {partition}
