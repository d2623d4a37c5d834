-- Write one event into the outbox, in the caller's transaction. Needs INSERT on the table.
-- The lists come from the columns of the contract (inserts.py).
INSERT INTO {table} (
    {columns}
) VALUES (
    {values}
)
