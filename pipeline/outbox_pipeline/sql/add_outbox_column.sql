-- Add a nullable column without a default, with its limit: no rewrite, ACCESS EXCLUSIVE for a scan; needs ownership.
ALTER TABLE {table} ADD COLUMN {column} {type}
    CONSTRAINT {check} CHECK (octet_length({column}::text) <= {limit})
