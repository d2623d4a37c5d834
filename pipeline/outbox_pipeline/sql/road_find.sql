-- Read whether the publisher of an outbox is stored.
SELECT to_regclass(%(name)s) IS NOT NULL AS there
