"""A copy of each dead letter on a Kafka topic, for tools that read such topics.

The record is the original one, key and value untouched; where it came from and why it is here stand in
headers named, and encoded, as Spring Kafka does, which other tools know: numbers are big-endian. The id that
the event is known by goes along, so that it keeps it on whatever topic the letter is sent again.
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
# What a producer may share with the consumer's properties: how to reach and to trust the brokers.
_SHARED: Final = ("bootstrap.servers", "client.", "security.", "sasl.", "ssl.", "socket.", "broker.address")


class DeadLetterTopic:
    """The topic of one consumer's dead letters; connects at the first one."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, group: str) -> None:
        self._settings = {key: value for key, value in kafka.items() if key.startswith(_SHARED)}
        self._topic = topic
        self._group = group
        self._producer: Producer | None = None

    def send(self, event: Event, history: FailureHistory, error: BaseException) -> None:
        """Write the letter and wait until the brokers have it. Raises NotDelivered when they do not."""
        if self._producer is None:
            self._producer = Producer(
                self._settings
                | {"enable.idempotence": True, "message.timeout.ms": int(DELIVERY_SECONDS * 1000)}
            )
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
    """Give the original headers and, behind them, the letter's own; those of an earlier letter go.

    Headers of an earlier trip would otherwise pile up until the record is too large.
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
