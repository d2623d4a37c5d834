-- Drop a partition whose rows have all been delivered. ACCESS EXCLUSIVE on the outbox for a moment.
DROP TABLE {partition}
