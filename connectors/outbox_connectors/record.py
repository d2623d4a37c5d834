"""An event, the row that holds it and the Kafka record it becomes: the contract, byte for byte.

Two programs must produce the same record from the same row: Debezium's EventRouter as `profile`
configures it, and the relay. This module contains everything they have to agree on, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, LiteralString, NamedTuple, Required, TypeAlias, TypedDict
from uuid import UUID

# Lists and string-keyed mappings of scalars, as `json.dumps` takes them.
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


@dataclass(frozen=True, slots=True)
class JsonText:
    """A JSON value that is already encoded. Its numbers keep every digit, because nothing converts them."""

    text: str


class Place(StrEnum):
    """The part of the record that a column of the outbox table becomes."""

    TOPIC = "topic"
    KEY = "key"
    VALUE = "value"
    HEADER = "header"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the outbox table and its place in the record."""

    name: LiteralString
    sql_type: LiteralString
    nullable: bool
    place: Place
    meaning: str


COLUMNS: Final = (
    Column("id", "uuid", False, Place.HEADER, "UUIDv7 set by the writer; the key of deduplication"),
    Column("aggregate_type", "text", False, Place.TOPIC, "names the topic"),
    Column("aggregate_id", "text", False, Place.KEY, "order is kept per aggregate"),
    Column("event_type", "text", False, Place.HEADER, "chooses the handler"),
    Column("event_version", "integer", False, Place.HEADER, "version of the payload's shape"),
    Column("payload", "jsonb", True, Place.VALUE, "jsonb or bytea; NULL is a tombstone"),
    Column("occurred_at", "timestamptz", False, Place.HEADER, "when it happened, by the writer's clock"),
    Column("position", "bigint", False, Place.NOWHERE, "identity; the order the relay reads in"),
    Column("traceparent", "text", True, Place.HEADER, "W3C trace context"),
    Column("correlation_id", "text", True, Place.HEADER, "the business process this belongs to"),
    Column("causation_id", "text", True, Place.HEADER, "the message that caused this one"),
    Column("headers", "jsonb", True, Place.HEADER, "the application's own headers, one JSON document"),
)

# The columns that a writer sets, in their order; the server generates `position`.
WRITTEN: Final = tuple(c for c in COLUMNS if c.name != "position")
# Every record has all of these in this order; a NULL column is a header with a null value.
HEADERS: Final[tuple[str, ...]] = tuple(c.name for c in COLUMNS if c.place is Place.HEADER)
# The optional texts: each is a header of its own, with one limit for all.
TRACE_TEXTS: Final = tuple(c.name for c in COLUMNS if c.nullable and c.sql_type == "text")

# -- Limits ------------------------------------------------------------------------------------------
# A row that Kafka rejects stops the connector permanently, and later rows may already have overtaken it
# (measured on Debezium 3.7.0.Final). So it must be impossible to write a row that cannot be delivered:
# the table's CHECK constraints and `event.validate` enforce the same numbers. All sizes are UTF-8 bytes.

# Kafka's topic names: at most 249 characters of these; "." and ".." are not names.
MAX_TOPIC: Final = 249
AGGREGATE_TYPE_PATTERN: Final = r"^[a-zA-Z0-9._-]+$"
# Leaves 49 characters to the rest of the topic template ("outbox.event." has 13).
MAX_AGGREGATE_TYPE: Final = 200
MAX_AGGREGATE_ID: Final = 1024
MAX_EVENT_TYPE: Final = 255
# Each of TRACE_TEXTS.
MAX_TRACE_TEXT: Final = 255
MAX_HEADERS_BYTES: Final = 16_384
# Producer's max.request.size (1,048,576, counted before compression) and the topic's max.message.bytes
# (1,048,588, counted after it) both bound key, value, headers and framing together. The fields above
# and the framing take less than 20,000 of the 48,576 bytes that a payload of this size leaves.
MAX_PAYLOAD_BYTES: Final = 1_000_000
# `integer` in PostgreSQL.
MIN_EVENT_VERSION: Final = -(2**31)
MAX_EVENT_VERSION: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event as a writer describes it. `payload` None is a tombstone; bytes are for a bytea outbox."""

    id: UUID
    aggregate_type: str
    aggregate_id: str
    event_type: str
    payload: Json | JsonText | bytes
    occurred_at: datetime
    event_version: int = 1
    traceparent: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    headers: Json | JsonText = None


class EventFields(TypedDict, total=False):
    """The keyword arguments of every function that creates an Event, besides its id and time."""

    aggregate_type: Required[str]
    aggregate_id: Required[str]
    event_type: Required[str]
    payload: Required[Json | JsonText | bytes]
    event_version: int
    headers: Json | JsonText
    correlation_id: str | None
    causation_id: str | None
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class Record:
    """A Kafka record as a consumer receives it. The partition follows from the key, see `partition_of`."""

    topic: str
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """An outbox row as text, as PostgreSQL prints it with `TimeZone=UTC` and `DateStyle=ISO`.

    `payload` is the text of a jsonb or the bytes of a bytea. `position` is not part of the contract.
    """

    id: str
    aggregate_type: str
    aggregate_id: str
    event_type: str
    event_version: str
    payload: str | bytes | None
    occurred_at: str
    traceparent: str | None
    correlation_id: str | None
    causation_id: str | None
    headers: str | None


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def row_record(row: Row, topic: str) -> Record:
    """Build the record of a row, identical byte for byte to what EventRouter produces from it."""
    # Spelled out instead of a loop over HEADERS, which is slower: the relay does this for every row.
    return Record(
        topic,
        row.aggregate_id.encode(),
        _bytes(row.payload),
        (
            ("id", row.id.encode()),
            ("event_type", row.event_type.encode()),
            ("event_version", row.event_version.encode()),
            ("occurred_at", wire_time(row.occurred_at).encode()),
            ("traceparent", _bytes(row.traceparent)),
            ("correlation_id", _bytes(row.correlation_id)),
            ("causation_id", _bytes(row.causation_id)),
            ("headers", _bytes(row.headers)),
        ),
    )


_TIMESTAMP = re.compile(
    r"(?P<year>\d{4,})-(?P<day>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,6}))?"
    r"\+00(?P<bc> BC)?"
)


def wire_time(printed: str) -> str:
    """Convert a timestamptz that PostgreSQL printed in UTC to the text of the `occurred_at` header.

    Always with six fraction digits and `Z`. Years after 9999 have a plus sign, years before 1 count
    from zero (44 BC is -0043), `infinity` is unchanged: what Debezium's ZonedTimestamp does.
    Raises ValueError for a text in another time zone or date style.
    """
    if printed in ("infinity", "-infinity"):
        return printed
    match = _TIMESTAMP.fullmatch(printed)
    if match is None:
        raise ValueError(f"not a timestamptz in UTC and ISO style: {printed!r}")
    year = int(match["year"])
    if match["bc"]:
        year = 1 - year
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    fraction = (match["fraction"] or "").ljust(6, "0")
    return f"{sign}{abs(year):04d}-{match['day']}T{match['time']}.{fraction}Z"


def time_text(moment: datetime) -> str:
    """Format an aware datetime as in the `occurred_at` header."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def partition_of(key: bytes, partitions: int) -> int:
    """Compute the partition of a key as Kafka's Java producer does (and librdkafka's `murmur2_random`)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Compute the hash of `org.apache.kafka.common.utils.Utils.murmur2`, as an unsigned 32-bit number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)
