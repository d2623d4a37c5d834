"""The contract: how an outbox row becomes a Kafka record.

`outbox_pipeline` and `outbox_consumers` depend on this package; it depends on neither.
"""
