-- Say whether there is a table (or partitioned table) of that name.
SELECT to_regclass(%(table)s) IS NOT NULL
