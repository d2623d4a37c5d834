-- Store the publisher of the outbox from now on; never the relay while there is a slot.
INSERT INTO {road} (road, why)
SELECT %(road)s, %(why)s
WHERE %(road)s = 'cdc' OR NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s)
ON CONFLICT (only_row) DO UPDATE SET road = excluded.road, why = excluded.why, since = now()
