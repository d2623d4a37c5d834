"""An event as a handler sees it. Nothing is decoded before it is read.

Building the UUID, parsing the JSON and copying the headers of every event in advance costs a bulk consumer
a third of its throughput (measured), so an event keeps the Kafka record and decodes it on demand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from confluent_kafka import Message

from outbox_connectors.record import time_text
from outbox_connectors.record_headers import Headers, header_value, read_headers
from outbox_consumers.errors import UnreadablePayload
from outbox_consumers.identity import (
    ID_HEADER,
    TYPE_HEADER,
    USUAL,
    IdentityRules,
    identify,
    position_id,
    type_of,
)

# The raw type of an event of our outbox's layout, which the reader has not stored in the event.
_NOT_READ: Final[Any] = object()


def about(event: Event, attempt: int | None = None) -> dict[str, object]:
    """Return the `extra` fields of a log line about an event: its identity, its position, its attempt."""
    topic, partition, offset = event.position
    key = event.message.key()
    return {
        "event_id": str(event.id),
        "event_type": (event.raw_type or b"").decode(errors="backslashreplace"),
        "aggregate": None if key is None else key.decode(errors="backslashreplace"),
        "attempt": event.attempt if attempt is None else attempt,
        "topic": topic,
        "partition": partition,
        "offset": offset,
    }


class Event:
    """One event. A handler reads it; a test builds it: `Event("OrderPlaced", {"total": 5}, key="42")`.

    `has_own_id` is False for a record without an id, or with one that identifies nothing (empty, blank,
    `null`, the nil UUID): a second delivery of the same record is recognised, but not a second record that
    its producer sends.
    """

    __slots__ = ("_attempt", "_data", "_place", "_raw_type", "_route", "id_text", "message", "packed_id")

    message: Message
    packed_id: bytes
    id_text: bytes  # the text of an id that is no UUID; not set for other events
    _attempt: int
    _place: int  # of its record in the RecordBatch that it was read with
    _raw_type: bytes | None  # not set for a record of our outbox's layout
    _data: Any
    _route: Any  # the handler that the consumer has chosen

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
        packed = id.bytes if id and id.int else position_id(topic, partition, offset)
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
    def of(cls, message: Message, naming: IdentityRules = USUAL) -> Event:
        """Make the event of a Kafka record. Decodes only its id and type. Never raises.

        A record whose headers cannot be read has no type, and an id derived from its position.
        """
        event = cls.__new__(cls)
        event.message = message
        headers = read_headers(message) or []
        event._raw_type = type_of(headers, naming)
        identity = identify(headers, event.position, naming)
        event.packed_id = identity.packed
        if identity.text:
            event.id_text = identity.text
        return event

    @classmethod
    def kept(cls, message: Message, packed_id: bytes, event_type: str) -> Event:
        """Restore an event that is stored in a table, with the id and type that are stored there."""
        event = cls.__new__(cls)
        event.message = message
        event.packed_id = packed_id
        event._raw_type = event_type.encode() or None
        return event

    def __repr__(self) -> str:
        topic, partition, offset = self.position
        kind = (self.raw_type or b"").decode(errors="backslashreplace")
        return f"<Event {kind} {self.id} {topic}/{partition}/{offset}>"

    @property
    def id(self) -> UUID:
        """The id from its writer: the same on every delivery, replay and redrive.

        Derived from the text and its scope if the writer's id is no UUID.
        """
        return UUID(bytes=self.packed_id)

    @property
    def has_own_id(self) -> bool:
        """Whether the record carries an id, see `Event`."""
        return self.packed_id != position_id(*self.position)

    @property
    def attempt(self) -> int:
        """The number of this attempt to handle the event, from 1."""
        try:
            return self._attempt
        except AttributeError:
            return 1

    @property
    def type(self) -> str:
        """What happened, for example `OrderPlaced`. Empty for a record without a type."""
        return _decoded("the event type", self.raw_type) or ""

    @property
    def raw_type(self) -> bytes | None:
        """The type as the bytes of the record; None for a record without a type."""
        found = getattr(self, "_raw_type", _NOT_READ)
        return type_of(self.record_headers, USUAL) if found is _NOT_READ else found

    @property
    def version(self) -> int:
        """Version of the payload as it was written. 1 for a record without a version."""
        text = self._text("event_version", 2)
        try:
            return int(text) if text else 1
        except ValueError:
            raise UnreadablePayload(f"header event_version is not a number: {text!r}") from None

    @property
    def key(self) -> str:
        """The aggregate's id. Events of one key arrive in the order in which they were committed."""
        key = self.message.key()
        try:
            return key.decode() if key else ""
        except UnicodeDecodeError:
            raise UnreadablePayload(f"key is not UTF-8: {key!r}") from None

    @property
    def data(self) -> Any:
        """The payload, parsed, in the version that the handler expects; None for a tombstone.

        Raises UnreadablePayload if it is no JSON, or of a version that no upcast leads to the expected one.
        """
        try:
            return self._data
        except AttributeError:
            pass
        value = self.message.value()
        try:
            data = None if value is None else json.loads(value)
        except (
            ValueError,
            RecursionError,
        ) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
            raise UnreadablePayload(f"the payload of {self!r} is no JSON: {error}") from None
        self._data = data if data is None else self._upcast(data)
        return self._data

    def _upcast(self, data: Any) -> Any:
        """Apply the upcasts up to the version that the handler expects."""
        route = getattr(self, "_route", None)
        if route is None or (route.version is None and not route.upcasts):
            return data
        version = self.version
        while version in route.upcasts and (route.version is None or version < route.version):
            data = route.upcasts[version](data)
            version += 1
        if route.version is not None and version != route.version:
            raise UnreadablePayload(
                f"the payload of {self!r} has version {self.version}, its handler expects {route.version}"
            )
        return data

    @property
    def payload(self) -> bytes | None:
        """The payload as bytes; None for a tombstone."""
        return self.message.value()

    @property
    def occurred_at(self) -> datetime | None:
        """When it happened, by the writer's clock (UTC). None for a record without a time."""
        text = self._text("occurred_at", 3)
        try:
            return datetime.fromisoformat(text) if text else None
        except ValueError:
            return None  # `infinity`, or a year that Python cannot represent

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of its writer, if any."""
        return self._text("traceparent", 4)

    @property
    def correlation_id(self) -> str | None:
        """The business process that this event belongs to, if any."""
        return self._text("correlation_id", 5)

    @property
    def causation_id(self) -> str | None:
        """The message that caused this event, if any."""
        return self._text("causation_id", 6)

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers that the writer's application added; empty if there are none."""
        value = self._header("headers", 7)
        try:
            found = json.loads(value) if value else {}
        except (ValueError, RecursionError) as error:
            raise UnreadablePayload(f"header headers of {self!r} is no JSON: {error}") from None
        return found if isinstance(found, dict) else {}

    @property
    def record_headers(self) -> Headers:
        """Every header of the Kafka record, unchanged; empty if a name is not UTF-8."""
        return read_headers(self.message) or []

    @property
    def position(self) -> tuple[str, int, int]:
        """Topic, partition and offset of the record."""
        message = self.message
        return message.topic() or "", message.partition() or 0, message.offset() or 0

    def _header(self, name: str, expected_at: int) -> bytes | None:
        return header_value(self.record_headers, name, expected_at)

    def _text(self, name: str, expected_at: int) -> str | None:
        return _decoded(f"header {name}", self._header(name, expected_at))


def _decoded(what: str, value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        raise UnreadablePayload(f"{what} is not UTF-8: {value!r}") from None
