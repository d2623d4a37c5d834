-- Read whether an outbox has a road written down.
SELECT to_regclass(%(name)s) IS NOT NULL AS there
