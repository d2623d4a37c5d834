-- Delete dead letters: their aggregates go on without them.
DELETE FROM {dead_letter} WHERE id = ANY (%(ids)s::uuid[]) RETURNING id
