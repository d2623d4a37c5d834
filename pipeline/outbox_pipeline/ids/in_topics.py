"""Read the ids of the records in every event topic of a pipeline, outside every consumer group."""

from __future__ import annotations

import time
from binascii import unhexlify
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox_connectors.definition import Definition
from outbox_connectors.profile import OLDEST, render
from outbox_connectors.record import HEADERS
from outbox_connectors.record_headers import Headers, read_headers
from outbox_pipeline.errors import AccessDenied, Unreachable
from outbox_pipeline.ids.record_id import HeaderNames, occurred_before, packed_id
from outbox_pipeline.servers import topic_reader
from outbox_pipeline.servers.kafka import FORBIDDEN, REFUSED_SETTINGS, refused_settings, unreachable

BATCH: Final = 2000
METADATA_SECONDS: Final = 30.0
SILENT_SECONDS: Final = 60.0  # in which a working broker sends a record or reports the end of a partition
ANY_MAJOR: Final = 14  # the names of headers are the same on every server
_ID, _OCCURRED_AT = HEADERS.index("id"), HEADERS.index("occurred_at")


class Topics:
    """A reader of every event topic of a pipeline, outside every group; commits nothing.

    `begin` starts at the records that were written since then, by the clock of their producer;
    `since` leaves out events that occurred before. Use it as a context manager.
    """

    def __init__(
        self, definition: Definition, *, begin: datetime | None = None, since: datetime | None = None
    ) -> None:
        self._servers = f"Kafka at {definition.kafka.client.get('bootstrap.servers', '')}"
        self._since = b"" if since is None else since.strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
        self._names = HeaderNames.of(render(definition, debezium=OLDEST, postgres_major=ANY_MAJOR))
        self._reasons: list[KafkaError] = []
        settings: dict[str, Any] = {
            **definition.kafka.client,
            "group.id": f"outboxctl-audit-{definition.pipeline}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": 32_768,
            "queued.min.messages": 20_000,
            "log_level": 2,
            "error_cb": self._reasons.append,
        }
        try:
            self._consumer = Consumer(settings)
        except REFUSED_SETTINGS as error:
            raise refused_settings(error) from error
        self._definition, self._begin = definition, begin
        self._next: dict[tuple[str, int], int] = {}  # where reading begins or goes on
        self._ended: set[tuple[str | None, int | None]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def _assign(self) -> None:
        """Assign every partition of every topic, from where reading stopped or from its start."""
        pattern = topic_reader.topic_pattern(self._definition.kafka.topic)
        own = _own_topics(self._definition)
        try:
            known = [TopicPartition(*at) for at in self._next]
            for part in self._consumer.position(known) if known else []:
                if part.offset >= 0:
                    self._next[part.topic, part.partition] = part.offset
            found = self._consumer.list_topics(timeout=METADATA_SECONDS).topics
            start = OFFSET_BEGINNING if self._begin is None else int(self._begin.timestamp() * 1000)
            fresh = [
                TopicPartition(name, number, start)
                for name, topic in found.items()
                if pattern.fullmatch(name) and name not in own
                for number in topic.partitions
                if (name, number) not in self._next
            ]
            if self._begin is not None and fresh:
                # A partition without a younger record answers with its end.
                fresh = self._consumer.offsets_for_times(fresh, timeout=METADATA_SECONDS)
        except KafkaException as error:
            raise unreachable(self._servers, self._reasons or [error.args[0]]) from error
        self._next |= {(part.topic, part.partition): part.offset for part in fresh}
        self._ended.clear()
        # Assigned anew, a partition tells its end again, also where nothing has come since.
        self._consumer.assign([TopicPartition(*at, offset) for at, offset in self._next.items()])

    def to_the_end(self, *, clock: Callable[[], float] = time.monotonic) -> Iterator[list[bytes]]:
        """Read the ids of all records up to the ends the partitions have when they are reached.

        Called again it goes on from there, in topics made since as well. Raises Unreachable, also when
        Kafka falls silent on the way.
        """
        self._assign()
        heard = clock()
        while len(self._ended) < len(self._next):
            messages = self._take(0.2)
            yield self._ids(messages)
            if messages:
                heard = clock()
            elif clock() - heard > SILENT_SECONDS:
                raise unreachable(self._servers, self._reasons)

    def trimmed(self) -> bool:
        """Tell whether a partition no longer holds its first record. Raises Unreachable."""
        self._assign()
        try:
            for at in self._next:
                low, _ = self._consumer.get_watermark_offsets(TopicPartition(*at), timeout=METADATA_SECONDS)
                if low > 0:
                    return True
        except KafkaException as error:
            raise unreachable(self._servers, self._reasons or [error.args[0]]) from error
        return False

    def more(self, seconds: float) -> list[bytes]:
        """Read ids that are there now or arrive within `seconds`."""
        return self._ids(self._take(seconds))

    def _take(self, seconds: float) -> list[Message]:
        first = self._consumer.poll(seconds)
        # consume() would wait until it is full; with time-out 0 it takes what has been fetched already.
        return [] if first is None else [first, *self._consumer.consume(BATCH, 0)]

    def _ids(self, messages: list[Message]) -> list[bytes]:
        """Read the ids of records; those that are none of ours have none."""
        found: list[bytes] = []
        since, take = self._since, found.append
        for message in messages:
            headers: Any = read_headers(message)
            # What the contract's records look like is read in place: a call for each would cost a third.
            try:
                name, value = headers[_ID]
                packed = value.replace(b"-", b"")
                if name == "id" and len(packed) == 32:
                    if not since:
                        take(unhexlify(packed))
                        continue
                    moment, at = headers[_OCCURRED_AT]
                    if moment == "occurred_at":
                        if at >= since:
                            take(unhexlify(packed))
                            continue
                        if at[:1] != b'"':
                            continue
            except (TypeError, ValueError, AttributeError, IndexError):
                pass  # other headers, or none: an end, an error, a record of another producer
            found += self._unusual(message, headers)
        return found

    def _unusual(self, message: Message, headers: Headers | None) -> list[bytes]:
        """Read the id of a record that is not written as the contract says, if it has one."""
        if message.error() is not None:
            self._check(message)
            return []
        one = packed_id(headers or [], self._names)
        if one is None or (self._since and occurred_before(headers or [], self._names, self._since)):
            return []
        return [one]

    def _check(self, message: Message) -> None:
        error = message.error()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            self._ended.add((message.topic(), message.partition()))
        elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
            kind = AccessDenied if error.code() in FORBIDDEN else Unreachable
            raise kind(f"Kafka refuses us: {error.str()}", where=self._servers)


def _own_topics(definition: Definition) -> set[str]:
    """Name the topics of the pipeline that hold no events although the template may match them."""
    return {definition.message_topic, f"{definition.pipeline}.relay"}
