-- Say which of these tables there are.
SELECT name FROM unnest(%(tables)s::text[]) AS name WHERE to_regclass(name) IS NOT NULL
