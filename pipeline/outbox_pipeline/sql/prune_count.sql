-- Count the rows of a partition.
SELECT count(*) FROM {partition}
