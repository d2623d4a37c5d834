"""The dead letter topic: a copy of each dead letter, for tools that read such topics.

Key and value are those of the original record. Headers say where it came from and why it failed, named and
encoded as Spring Kafka does (numbers are big-endian), which other tools understand. Another header carries
the event's id, so that the event keeps it when the copy is sent to a topic again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox_connectors.record_headers import Headers
from outbox_consumers.errors import NotDelivered
from outbox_consumers.event import Event
from outbox_consumers.failures.dead_letter import MAX_ERROR_CHARACTERS, FailureHistory
from outbox_consumers.identity import DEAD_LETTER_ID_HEADER

DELIVERY_SECONDS: Final = 5.0
_PREFIX: Final = "kafka_dlt-"
_ATTEMPTS: Final = "retry_topic-attempts"


class DeadLetterTopic:
    """Sends the dead letters of one consumer to its topic. Connects when the first one is sent.

    `connection` holds the properties with which a Kafka client connects to the brokers.
    """

    def __init__(self, connection: Mapping[str, Any], topic: str, group: str) -> None:
        self._connection = connection
        self._topic = topic
        self._group = group
        self._producer: Producer | None = None

    def send(self, event: Event, history: FailureHistory, error: BaseException) -> None:
        """Send a copy and wait until the brokers acknowledge it. Raises NotDelivered if they do not."""
        if self._producer is None:
            guarantees = {"enable.idempotence": True, "message.timeout.ms": int(DELIVERY_SECONDS * 1000)}
            self._producer = Producer({**self._connection, **guarantees})
        results: list[KafkaError | None] = []

        def delivered(problem: KafkaError | None, _: Message) -> None:
            results.append(problem)

        message = event.message
        try:
            self._producer.produce(
                self._topic,
                message.value(),
                message.key(),
                headers=dead_letter_headers(event, history, error, self._group),
                on_delivery=delivered,
            )
            self._producer.flush(DELIVERY_SECONDS + 1)
        except (KafkaException, BufferError, SystemError) as problem:
            # The client raises SystemError when a fatal error meets a delivery callback.
            self._producer = None
            raise NotDelivered(f"topic {self._topic} did not take a dead letter: {problem}") from problem
        if not results or results[0] is not None:
            problem_text = results[0].str() if results and results[0] else "no answer"
            raise NotDelivered(f"topic {self._topic} did not take a dead letter: {problem_text}")


def dead_letter_headers(event: Event, history: FailureHistory, error: BaseException, group: str) -> Headers:
    """Return the original headers followed by those of the dead letter.

    Headers that an earlier dead letter of the same event left behind are removed; they would add up until
    the record is too large.
    """
    topic, partition, offset = event.position
    kind, timestamp = event.message.timestamp()
    own: dict[str, bytes] = {
        "original-topic": topic.encode(),
        "original-partition": struct.pack("!i", partition),
        "original-offset": struct.pack("!q", offset),
        "original-timestamp": struct.pack("!q", timestamp),
        "original-timestamp-type": b"LogAppendTime" if kind == 2 else b"CreateTime",
        "original-consumer-group": group.encode(),
        "exception-fqcn": f"{type(error).__module__}.{type(error).__qualname__}".encode(),
        "exception-message": str(error)[:MAX_ERROR_CHARACTERS].encode("utf-8", "backslashreplace"),
    }
    others: dict[str, bytes] = {
        _ATTEMPTS: struct.pack("!i", history.attempts),
        DEAD_LETTER_ID_HEADER: str(event.id).encode(),
    }
    kept = [pair for pair in event.record_headers if not (pair[0].startswith(_PREFIX) or pair[0] in others)]
    return [*kept, *((_PREFIX + name, value) for name, value in own.items()), *others.items()]
