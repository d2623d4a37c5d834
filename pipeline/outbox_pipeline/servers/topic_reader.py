"""Read a pipeline's topics from the side: nobody's group, nobody's offsets.

A Reader assigns partitions itself. It joins no group and commits nothing, so looking never changes
what a consumer sees. The group id it must have is new each time and never reaches the broker's books.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from outbox_connectors.definition import Kafka
from outbox_connectors.record import HEADERS
from outbox_connectors.record_headers import read_headers
from outbox_pipeline.errors import AccessDenied, Unreachable
from outbox_pipeline.servers.kafka import FORBIDDEN, HOPELESS, REFUSED_SETTINGS, refused_settings, unreachable

BATCH = 1000
METADATA_SECONDS = 10.0
READ_SECONDS = 0.2
REFRESH_SECONDS = 2.0
UNREADABLE = "headers unreadable: a name is not UTF-8"

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record as it stands in a topic: an outbox event, or whatever else somebody put there."""

    topic: str
    partition: int
    offset: int
    written_at: datetime | None  # when the broker or the producer stamped it
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    unreadable_headers: bool = False  # a header's name is no UTF-8, and the client gives none of them

    def header(self, name: str) -> str | None:
        """Read the first header of this name as text; None where it is absent or null."""
        return next((text(value) for key, value in self.headers if key == name), None)


def arrival(message: Message) -> Arrival:
    """Take a consumed message apart."""
    kind, milliseconds = message.timestamp()
    headers = read_headers(message)
    return Arrival(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        written_at=_moment(milliseconds) if kind else None,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in headers or ()),
        unreadable_headers=headers is None,
    )


def _moment(milliseconds: int) -> datetime | None:
    """Give the time of a record; None for one that no calendar has: a producer may write any number."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def text(raw: bytes | None) -> str | None:
    """Decode UTF-8; bytes that are none come out as `\\xNN`, nothing is lost and nothing raises."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def harmless(line: str) -> str:
    """Escape what a terminal would obey or hide: control characters, bidirectional and line separators."""
    return "".join(char if char.isprintable() else _escaped(char) for char in line)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def document(arrived: Arrival) -> dict[str, Any]:
    """Show an arrival as one JSON document; a payload that is JSON is not quoted a second time."""
    shown: dict[str, Any] = {
        "topic": arrived.topic,
        "partition": arrived.partition,
        "offset": arrived.offset,
        "written_at": arrived.written_at.isoformat() if arrived.written_at else None,
        "key": text(arrived.key),
    }
    shown.update({name: arrived.header(name) for name in HEADERS})
    shown["headers"] = _json_or_text(shown["headers"])
    shown["payload"] = _payload(arrived.value)
    if arrived.unreadable_headers:
        shown["note"] = UNREADABLE
    return shown


def document_line(arrived: Arrival) -> str:
    """Write the document as one line that every terminal and file takes.

    Letters of all scripts stand as they are, but where JSON has half a surrogate pair, which UTF-8 cannot
    hold, all of the line is escaped.
    """
    line = json.dumps(document(arrived), ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(document(arrived))
    return line


def _payload(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return _json_or_text(value.decode())
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _json_or_text(value: str | None) -> Any:
    """Take JSON apart; what is none, or could not be written as JSON again (NaN), stays text."""
    with contextlib.suppress(ValueError, RecursionError):
        found = None if value is None else json.loads(value)
        json.dumps(found, allow_nan=False)
        return found
    return value


def row(arrived: Arrival) -> tuple[str, str, str, str, str, str]:
    """Show an arrival in six cells: time, topic, key, type, id, payload. Safe to print on a terminal."""
    written = arrived.written_at.isoformat() if arrived.written_at else "(no time)"
    return (
        harmless(arrived.header("occurred_at") or written),
        harmless(arrived.topic),
        "(no key)" if arrived.key is None else harmless(text(arrived.key) or ""),
        f"({UNREADABLE})"
        if arrived.unreadable_headers
        else harmless(arrived.header("event_type") or "(no type)"),
        harmless(arrived.header("id") or "(no id)"),
        "(tombstone)" if arrived.value is None else harmless(_readable(arrived.value)),
    )


def _readable(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def topic_pattern(template: str) -> re.Pattern[str]:
    """Match every topic that rows of a pipeline can go to, whatever their aggregate type."""
    before, _, after = template.partition("{aggregate_type}")
    return re.compile(f"{re.escape(before)}(?P<aggregate_type>[a-zA-Z0-9._-]+){re.escape(after)}")


class Reader:
    """A consumer outside every group. Use it as a context manager, or `close` it."""

    def __init__(self, kafka: Kafka) -> None:
        self.servers = f"Kafka at {kafka.client.get('bootstrap.servers', '')}"
        self._reasons: list[KafkaError] = []
        self._next: dict[tuple[str, int], int] = {}  # where reading goes on, of each partition followed
        settings: dict[str, Any] = {
            **kafka.client,
            "group.id": f"outboxctl-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",  # an offset that retention removed: go on with the oldest left
            "fetch.queue.backoff.ms": 10,
            "error_cb": self._reasons.append,
        }
        try:
            self._consumer = Consumer(settings, logger=log)
        except REFUSED_SETTINGS as error:
            raise refused_settings(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Commits nothing."""
        self._consumer.close()

    def follow(self, pattern: re.Pattern[str], *, from_end: bool = False) -> frozenset[str]:
        """Read every topic whose whole name matches, and say which topics are read now.

        Call it again to find topics and partitions made since. Those not read yet are read from
        their beginning, or, with `from_end`, from the position they have at this moment.
        Raises Unreachable when Kafka does not answer or refuses us.
        """
        fresh = sorted(self._partitions(pattern) - self._next.keys())
        starts = {at: self._end(*at) if from_end else OFFSET_BEGINNING for at in fresh}
        if fresh:
            self._consumer.incremental_assign([TopicPartition(*at, start) for at, start in starts.items()])
            self._next |= {at: max(start, 0) for at, start in starts.items()}
        return frozenset(topic for topic, _ in self._next)

    def behind(self) -> bool:
        """Say whether a partition holds records that were not read yet. Raises Unreachable.

        Offsets are compared, so the markers of a producer's transactions at the end of a topic count.
        """
        return any(self._end(*at) > offset for at, offset in self._next.items())

    def read(self, timeout_seconds: float) -> list[Arrival]:
        """Wait for records, at most `timeout_seconds`, and return those that are there, up to BATCH.

        Records of one partition come in its order. Raises Unreachable when Kafka refuses us.
        """
        first = self._consumer.poll(timeout_seconds)
        # consume() would wait until it is full; with time-out 0 it takes what has been fetched already.
        messages = [] if first is None else [first, *self._consumer.consume(BATCH - 1, 0)]
        for message in messages:
            self._check(message.error())
        self._check_reasons()
        arrivals = [arrival(message) for message in messages if message.error() is None]
        self._next |= {(found.topic, found.partition): found.offset + 1 for found in arrivals}
        return arrivals

    def _partitions(self, pattern: re.Pattern[str]) -> set[tuple[str, int]]:
        try:
            topics = self._consumer.list_topics(timeout=METADATA_SECONDS).topics
        except KafkaException as error:
            self._consumer.poll(0)  # lets the callback tell the reasons, a refused password for example
            raise unreachable(self.servers, self._reasons or [error.args[0]]) from error
        return {
            (name, partition)
            for name, topic in topics.items()
            if pattern.fullmatch(name)
            for partition in topic.partitions
        }

    def _end(self, topic: str, partition: int) -> int:
        try:
            offsets = self._consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=METADATA_SECONDS
            )
        except KafkaException as error:
            self._check(error.args[0])
            raise unreachable(self.servers, [*self._reasons, error.args[0]]) from error
        return int(offsets[1]) if offsets else 0

    def _check(self, error: KafkaError | None) -> None:
        if error is not None and error.code() in FORBIDDEN:
            raise AccessDenied(
                f"Kafka refuses us: {error.str()}",
                where=self.servers,
                remedy="grant this user READ and DESCRIBE on the topics",
            )

    def _check_reasons(self) -> None:
        if any(reason.code() in HOPELESS for reason in self._reasons):
            raise unreachable(self.servers, self._reasons)
        del self._reasons[:-20]


def arrivals(
    reader: Reader,
    pattern: re.Pattern[str],
    *,
    limit: int | None = None,
    timeout_seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Arrival]:
    """Yield records as they arrive, until there were `limit` of them or the time is over; None: for ever.

    Topics made meanwhile are found within REFRESH_SECONDS and read from their beginning. A broker
    that goes away is waited for; one that refuses us raises Unreachable.
    """
    began = looked = clock()
    left = limit
    while timeout_seconds is None or clock() - began < timeout_seconds:
        for arrived in reader.read(READ_SECONDS):
            if left is not None and left <= 0:
                return
            yield arrived
            left = None if left is None else left - 1
        if left is not None and left <= 0:
            return
        if clock() - looked >= REFRESH_SECONDS:
            with contextlib.suppress(Unreachable):
                reader.follow(pattern)
            looked = clock()
