"""A client that asks Kafka for topics and groups, as tests need it."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from outbox_pipeline.servers.kafka import BY_ITSELF


def administrator(client: Mapping[str, str]) -> AdminClient:
    """Make one that asks again in a second where a broker tells of no controller, not in five minutes.

    A broker does so for a moment when it has just begun, or stood still for long enough to be fenced.
    """
    return AdminClient({**BY_ITSELF, "log_level": "0", **client})
