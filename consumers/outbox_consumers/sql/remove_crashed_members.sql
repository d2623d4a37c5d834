-- Remove the members whose sessions are gone, and return them: they died without saying goodbye.
DELETE FROM {member}
WHERE consumer = %(consumer)s
  AND member <> %(member)s
  AND pg_try_advisory_xact_lock(hashtextextended(member::text, 0))
RETURNING member
