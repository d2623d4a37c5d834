"""The retention of topics, which is the minimum that an inbox has to remember."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from outbox_consumers.errors import Failed, Unreachable
from outbox_consumers.loop.kafka_settings import connection_settings

SECONDS: Final = 10.0


def retentions(kafka: Mapping[str, Any], topics: Sequence[str]) -> dict[str, timedelta | None]:
    """Read the retention of each topic; None: it keeps records for ever (retention.ms=-1 or compaction).

    A name that begins with `^` is a pattern, as in a subscription. Raises Unreachable or Failed.
    """
    # A variable keeps the client alive; confluent-kafka fails the futures of a deleted one.
    admin = AdminClient(connection_settings(kafka))
    try:
        known = admin.list_topics(timeout=SECONDS).topics
        names = [name for name in known if any(_matches(topic, name) for topic in topics)]
        if not names:
            raise Failed(f"no such topic: {', '.join(topics)}")
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = admin.describe_configs(asked, request_timeout=SECONDS)
        return {resource.name: _retention(answer.result(SECONDS)) for resource, answer in answers.items()}
    except KafkaException as error:
        raise Unreachable(
            error.args[0].str(),
            where=f"Kafka at {kafka.get('bootstrap.servers')}",
            remedy="check bootstrap.servers and the right to DescribeConfigs on the topics",
        ) from None


def _matches(topic: str, name: str) -> bool:
    return re.search(topic, name) is not None if topic.startswith("^") else topic == name


def _retention(config: Mapping[str, Any]) -> timedelta | None:
    kept = int(config["retention.ms"].value)
    if kept < 0 or "delete" not in config["cleanup.policy"].value:
        return None
    return timedelta(milliseconds=kept)
