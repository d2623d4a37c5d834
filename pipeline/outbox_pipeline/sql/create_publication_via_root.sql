-- Publish the inserts of every partition under the name of the outbox. Needs ownership and CREATE on the database.
CREATE PUBLICATION {publication} FOR TABLE {table} WITH (publish = 'insert', publish_via_partition_root = true)
