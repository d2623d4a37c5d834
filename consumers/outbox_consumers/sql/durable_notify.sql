-- Notify the workers when this transaction commits; PostgreSQL merges several calls in one transaction.
SELECT pg_notify(%(channel)s, '')
