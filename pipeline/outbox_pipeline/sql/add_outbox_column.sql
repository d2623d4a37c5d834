-- Add a nullable column without a default: no rewrite, ACCESS EXCLUSIVE for a moment; needs ownership.
ALTER TABLE {table} ADD COLUMN {column} {type}
