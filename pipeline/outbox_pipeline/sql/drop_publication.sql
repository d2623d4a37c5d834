-- Drop the publication. Needs ownership of it.
DROP PUBLICATION {publication}
