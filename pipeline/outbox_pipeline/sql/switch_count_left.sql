-- Count the rows up to a position.
SELECT count(*) FROM {table} WHERE position <= %(until)s
