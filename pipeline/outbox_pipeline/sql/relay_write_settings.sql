-- Write how the outbox is relayed, unless that is written already.
INSERT INTO {settings} (pipeline, shards) VALUES ({pipeline}, {shards}) ON CONFLICT DO NOTHING
