-- Return those of these tables that exist.
SELECT name FROM unnest(%(tables)s::text[]) AS name WHERE to_regclass(name) IS NOT NULL
