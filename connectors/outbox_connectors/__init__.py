"""The contract: how an outbox row becomes a Kafka record.

The leaf of the project. Both sides import it, it imports neither.
"""
