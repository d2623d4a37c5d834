"""An event as a handler sees it. Nothing is decoded before somebody asks for it.

Building the UUID, parsing the JSON and copying the headers of every event up front costs a bulk
consumer a third of its throughput (measured), so all of it waits in the Kafka record.
"""

from __future__ import annotations

import json
from binascii import unhexlify
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid5

from confluent_kafka import Message

from outbox_connectors.record import time_text
from outbox_consumers.errors import UnreadablePayload

ID_HEADER: Final = "id"
TYPE_HEADER: Final = "event_type"

# Namespaces of the ids we have to derive. Changing them would make old events look new.
_TEXT_IDS: Final = UUID("0b8f6a52-9d0c-5c57-8f0c-5e4ce0a9a1d4")
_POSITION_IDS: Final = UUID("7a0f3a7e-3d5b-5f0e-9a4b-3f1f0c1f2b6d")

# What the client gives: bytes from Kafka, str only in messages that a test has built.
Headers: TypeAlias = list[tuple[str, str | bytes | None]]


def headers_of(message: Message) -> Headers:
    """Read the headers of a record in their order; a record without any has an empty list."""
    found = message.headers()
    return list(found.items()) if isinstance(found, dict) else found or []


def header(headers: Headers, name: str, expected_at: int) -> bytes | None:
    """Find the first header of that name, looking first where our own records have it."""
    if len(headers) > expected_at and headers[expected_at][0] == name:
        value = headers[expected_at][1]
    else:
        value = next((value for found, value in headers if found == name), None)
    return value.encode() if isinstance(value, str) else value


def pack(text: bytes) -> bytes:
    """Turn the text of an id into the 16 bytes the inbox stores.

    An id that is no UUID becomes a UUIDv5 of its text: the same text is always the same id.
    """
    try:
        packed = unhexlify(text.replace(b"-", b""))
    except ValueError:
        packed = b""
    return packed if len(packed) == 16 else uuid5(_TEXT_IDS, text.decode("utf-8", "backslashreplace")).bytes


def position_id(topic: str, partition: int, offset: int) -> bytes:
    """Derive an id for a record that carries none: protects from redelivery of this record only."""
    return uuid5(_POSITION_IDS, f"{topic}/{partition}/{offset}").bytes


def about(event: Event, attempt: int | None = None) -> dict[str, object]:
    """Give what a log line about an event carries as `extra`: which it is, where it lies, how often tried."""
    topic, partition, offset = event.position
    kind, key = header(headers_of(event.message), TYPE_HEADER, 1), event.message.key()
    return {
        "event_id": str(event.id),
        "event_type": (kind or b"").decode(errors="backslashreplace"),
        "aggregate": None if key is None else key.decode(errors="backslashreplace"),
        "attempt": event.attempt if attempt is None else attempt,
        "topic": topic,
        "partition": partition,
        "offset": offset,
    }


class Event:
    """One event. A handler reads it; a test builds it: `Event("OrderPlaced", {"total": 5}, key="42")`.

    `has_own_id` is False for a record without an id header: such an event is recognised when Kafka
    delivers the same record again, but not when its producer sends it twice.
    """

    __slots__ = ("_attempt", "_data", "_route", "message", "packed_id")

    message: Message
    packed_id: bytes
    _attempt: int
    _data: Any
    _route: Any  # the consumer's own: the handler it has chosen

    def __init__(
        self,
        type: str,
        data: Any = None,
        *,
        id: UUID | None = None,
        key: str = "",
        version: int = 1,
        occurred_at: datetime | None = None,
        headers: Mapping[str, Any] | None = None,
        topic: str = "test",
        partition: int = 0,
        offset: int = 0,
    ) -> None:
        """Build an event for a unit test. A consumer makes its events from Kafka records."""
        packed = id.bytes if id else position_id(topic, partition, offset)
        record: Headers = [
            (ID_HEADER, str(UUID(bytes=packed)).encode()),
            (TYPE_HEADER, type.encode()),
            ("event_version", str(version).encode()),
            ("occurred_at", time_text(occurred_at or datetime.now(UTC)).encode()),
            ("headers", json.dumps(headers).encode() if headers is not None else None),
        ]
        value = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
        self.message = Message(topic, partition, offset, key.encode(), value, record)
        self.packed_id = packed

    @classmethod
    def of(cls, message: Message) -> Event:
        """Make the event of a Kafka record without decoding more than its id."""
        event = cls.__new__(cls)
        event.message = message
        text = header(headers_of(message), ID_HEADER, 0)
        event.packed_id = pack(text) if text is not None else position_id(*event.position)
        return event

    def __repr__(self) -> str:
        topic, partition, offset = self.position
        kind = (self._header(TYPE_HEADER, 1) or b"").decode(errors="backslashreplace")
        return f"<Event {kind} {self.id} {topic}/{partition}/{offset}>"

    @property
    def id(self) -> UUID:
        """The id its writer gave it: the same on every delivery, replay and redrive."""
        return UUID(bytes=self.packed_id)

    @property
    def has_own_id(self) -> bool:
        """Whether the record carries an id, see `Event`."""
        return self._header(ID_HEADER, 0) is not None

    @property
    def attempt(self) -> int:
        """Which attempt to handle the event this is, from 1."""
        try:
            return self._attempt
        except AttributeError:
            return 1

    @property
    def type(self) -> str:
        """What happened, for example `OrderPlaced`. Empty for a record that does not say."""
        return self._text(TYPE_HEADER, 1) or ""

    @property
    def version(self) -> int:
        """Version of the payload's shape as it was written. 1 for a record that does not say."""
        text = self._text("event_version", 2)
        try:
            return int(text) if text else 1
        except ValueError:
            raise UnreadablePayload(f"header event_version is no number: {text!r}") from None

    @property
    def key(self) -> str:
        """The aggregate's id. Events of one key arrive in the order they were committed in."""
        key = self.message.key()
        try:
            return key.decode() if key else ""
        except UnicodeDecodeError:
            raise UnreadablePayload(f"key is not UTF-8: {key!r}") from None

    @property
    def data(self) -> Any:
        """The payload, parsed, in the version the handler wants; None for a tombstone.

        Raises UnreadablePayload when it is no JSON, or of a version that nothing leads from to that one.
        """
        try:
            return self._data
        except AttributeError:
            pass
        value = self.message.value()
        try:
            data = None if value is None else json.loads(value)
        except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors
            raise UnreadablePayload(f"the payload of {self!r} is no JSON: {error}") from None
        self._data = data if data is None else self._upcast(data)
        return self._data

    def _upcast(self, data: Any) -> Any:
        """Bring the payload to the version the handler wants, step by step."""
        route = getattr(self, "_route", None)
        if route is None or (route.version is None and not route.upcasts):
            return data
        version = self.version
        while version in route.upcasts and (route.version is None or version < route.version):
            data = route.upcasts[version](data)
            version += 1
        if route.version is not None and version != route.version:
            raise UnreadablePayload(
                f"the payload of {self!r} has version {self.version}, its handler wants {route.version}"
            )
        return data

    @property
    def payload(self) -> bytes | None:
        """The payload as it came; None for a tombstone."""
        return self.message.value()

    @property
    def occurred_at(self) -> datetime | None:
        """When it happened, by the writer's clock (UTC). None for a record that does not say."""
        text = self._text("occurred_at", 3)
        try:
            return datetime.fromisoformat(text) if text else None
        except ValueError:
            return None  # `infinity`, or a year Python does not know

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of its writer."""
        return self._text("traceparent", 4)

    @property
    def correlation_id(self) -> str | None:
        """The business process this event belongs to."""
        return self._text("correlation_id", 5)

    @property
    def causation_id(self) -> str | None:
        """The message that caused this event."""
        return self._text("causation_id", 6)

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers that the writer's application added; empty when there are none."""
        value = self._header("headers", 7)
        try:
            found = json.loads(value) if value else {}
        except ValueError as error:
            raise UnreadablePayload(f"header headers of {self!r} is no JSON: {error}") from None
        return found if isinstance(found, dict) else {}

    @property
    def record_headers(self) -> Headers:
        """Every header of the Kafka record, as it came."""
        return headers_of(self.message)

    @property
    def position(self) -> tuple[str, int, int]:
        """Topic, partition and offset of the record."""
        message = self.message
        return message.topic() or "", message.partition() or 0, message.offset() or 0

    def _header(self, name: str, expected_at: int) -> bytes | None:
        return header(headers_of(self.message), name, expected_at)

    def _text(self, name: str, expected_at: int) -> str | None:
        value = self._header(name, expected_at)
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            raise UnreadablePayload(f"header {name} is not UTF-8: {value!r}") from None
