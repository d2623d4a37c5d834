-- Billing's own table: one invoice for each order. Nothing in it is unique but its number, so an order
-- that was billed twice would show as two rows. (In your own table, a unique key is good company.)
CREATE TABLE IF NOT EXISTS invoice (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL,
    order_id text NOT NULL,
    total numeric NOT NULL,
    billed_at timestamptz NOT NULL DEFAULT now()
);
