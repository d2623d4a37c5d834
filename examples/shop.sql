-- The shop's own table. PostgreSQL searches the schema with the name of the role first, so the shop
-- keeps its tables there and does not use `public`.
CREATE SCHEMA IF NOT EXISTS AUTHORIZATION CURRENT_USER;

CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    total integer NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);
