-- Delete and return the members whose session holds no lock any more: their processes crashed.
DELETE FROM {member}
WHERE consumer = %(consumer)s
  AND member <> %(member)s
  AND pg_try_advisory_xact_lock(hashtextextended(member::text, 0))
RETURNING member
