-- The shop's own table. PostgreSQL looks for tables in the schema named like the role first, so the
-- shop keeps its tables there and leaves `public` to others.
CREATE SCHEMA IF NOT EXISTS AUTHORIZATION CURRENT_USER;

CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    total integer NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);
