-- Billing's own table: one invoice per order. Only its number is unique, so that an order billed twice
-- would show as two rows. (In your own table, add a unique key on the order.)
CREATE TABLE IF NOT EXISTS invoice (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL,
    order_id text NOT NULL,
    total numeric NOT NULL,
    billed_at timestamptz NOT NULL DEFAULT now()
);
