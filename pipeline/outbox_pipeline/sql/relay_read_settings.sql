-- Read which pipeline relays the outbox, over how many shards.
SELECT pipeline, shards FROM {settings}
