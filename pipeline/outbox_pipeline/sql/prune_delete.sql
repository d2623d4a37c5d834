-- Delete a small batch of rows by their ids, and tell how many bytes of the table new rows may take.
WITH gone AS (
    DELETE FROM {table} AS o WHERE id = ANY (%(ids)s::uuid[]) RETURNING pg_column_size(o.*) AS bytes
)
SELECT count(*) AS rows, coalesce(sum(bytes), 0)::bigint AS bytes FROM gone
