-- Write many events in the order given, in the caller's transaction. Needs INSERT on the table.
-- INSERT ... SELECT gives every row a position of its own in the log (COPY does not).
-- The lists come from the columns of the contract (inserts.py).
INSERT INTO {table} (
    {columns}
)
SELECT {values}
FROM unnest({arrays}) WITH ORDINALITY AS e ({elements}, place)
ORDER BY e.place
