-- Publish rows of partitions under the name of the outbox. Needs ownership of the publication.
ALTER PUBLICATION {publication} SET (publish_via_partition_root = true)
