-- Publish inserts too, beside what the publication publishes already. Needs ownership of the publication.
ALTER PUBLICATION {publication} SET (publish = {operations})
