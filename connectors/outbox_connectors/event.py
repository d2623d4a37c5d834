"""Validate an event before the database is touched, and print its JSON as PostgreSQL's jsonb does.

`validate` rejects exactly the events that could not be delivered, by the limits in `record`; the table's
CHECK constraints enforce the same limits on every other writer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Final, TypeAlias
from uuid import UUID

from outbox_connectors import record
from outbox_connectors.definition import Payload
from outbox_connectors.errors import EventError
from outbox_connectors.record import Event, Json, JsonText, Record

_AGGREGATE_TYPE = re.compile(record.AGGREGATE_TYPE_PATTERN)
# Python's JSON has the blanks and escapes that jsonb prints, and differs in one thing: jsonb prints
# numbers without exponents. A float with one grows by less than this, 5e-324 being the longest.
_EXPONENT = re.compile(r"\de[+-]")
_GROWTH: Final = 350
# jsonb keeps numbers as `numeric`: PostgreSQL docs, Numeric Types.
_MAX_WEIGHT: Final = 131_071
_MAX_SCALE: Final = 16_383
_UNFIT: Final = "a number does not fit PostgreSQL's numeric"


class UnsafeAggregateType(EventError):
    """An aggregate type that cannot be part of a Kafka topic name."""


class InvalidText(EventError):
    """A text that PostgreSQL or Kafka cannot hold, or an empty one where one is needed."""


class InvalidJson(EventError):
    """A value that is not JSON as PostgreSQL's jsonb understands it."""


class InvalidField(EventError):
    """A field of the wrong type or out of range."""


class TooLarge(EventError):
    """A field that would make the record larger than Kafka accepts."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The encoded payload and headers of an event: text for jsonb, bytes for bytea."""

    payload: str | bytes | None
    headers: str | None


def validate(event: Event, payload: Payload | None = None) -> None:
    """Raise EventError for an event that could never be delivered. No I/O.

    `payload` is the type of the outbox's payload column; None accepts what either type could hold.
    """
    encode(event, payload)


def encode(event: Event, payload: Payload | None = None) -> Encoded:
    """Validate an event and return its encoded payload and headers, so that its JSON is encoded only once.

    Raises EventError, see `validate`.
    """
    _check_id(event.id)
    _check_aggregate_type(event.aggregate_type)
    _check_text("aggregate_id", event.aggregate_id, record.MAX_AGGREGATE_ID)
    _check_text("event_type", event.event_type, record.MAX_EVENT_TYPE)
    _check_version(event.event_version)
    _check_moment(event.occurred_at)
    for name in record.TRACE_TEXTS:
        value = getattr(event, name)
        if value is not None:
            _check_text(name, value, record.MAX_TRACE_TEXT, empty=True)
    headers = None
    if event.headers is not None:
        headers = json_text("headers", event.headers, record.MAX_HEADERS_BYTES)
    return Encoded(_payload(event.payload, payload), headers)


def _payload(value: Json | JsonText | bytes, kind: Payload | None) -> str | bytes | None:
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray, memoryview)):
        if kind is Payload.JSONB:
            raise InvalidField("payload is bytes, the outbox holds jsonb", remedy="pass a JSON value")
        raw = bytes(value)
        _check_size("payload", len(raw), record.MAX_PAYLOAD_BYTES)
        return raw
    if kind is Payload.BYTEA:
        raise InvalidField(
            f"payload is {type(value).__name__}, the outbox holds bytea", remedy="pass bytes or None"
        )
    return json_text("payload", value, record.MAX_PAYLOAD_BYTES)


def _check_id(value: object) -> None:
    if not isinstance(value, UUID):
        raise InvalidField(f"id must be a uuid.UUID, not {type(value).__name__}")


def _check_aggregate_type(value: object) -> None:
    if not isinstance(value, str):
        raise InvalidField(f"aggregate_type must be str, not {type(value).__name__}")
    if len(value) > record.MAX_AGGREGATE_TYPE:
        raise TooLarge(
            f"aggregate_type has {len(value)} characters, the limit is {record.MAX_AGGREGATE_TYPE}"
        )
    if value in (".", "..") or not _AGGREGATE_TYPE.fullmatch(value):
        raise UnsafeAggregateType(
            f"aggregate_type {value!r} cannot be part of a topic name",
            remedy="use letters, digits, '.', '_' and '-'",
        )


def _check_text(name: str, value: object, limit: int, *, empty: bool = False) -> None:
    if not isinstance(value, str):
        raise InvalidField(f"{name} must be str, not {type(value).__name__}")
    if not value and not empty:
        raise InvalidText(f"{name} is empty")
    if "\0" in value:
        raise InvalidText(f"{name} contains a NUL character, which PostgreSQL's text cannot hold")
    _check_size(name, len(_utf8(name, value)), limit)


def _check_version(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidField(f"event_version must be int, not {type(value).__name__}")
    if not record.MIN_EVENT_VERSION <= value <= record.MAX_EVENT_VERSION:
        raise InvalidField(f"event_version {value} does not fit PostgreSQL's integer")


def _check_moment(value: object) -> None:
    if not isinstance(value, datetime):
        raise InvalidField(f"occurred_at must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidField("occurred_at has no time zone", remedy="use datetime.now(timezone.utc)")


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise TooLarge(
            f"{name} has {size:,} bytes, the limit is {limit:,}",
            remedy="store the bulk elsewhere and send a reference" if name == "payload" else "",
        )


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidText(f"{name} contains a lone surrogate, which is not Unicode text") from None


def json_text(name: str, value: Json | JsonText, limit: int) -> str:
    """Encode a JSON value for a jsonb column.

    `limit` is in bytes of the text that jsonb prints, which is what the record contains. `name` is the field
    named in errors. Raises InvalidJson, InvalidText and TooLarge for what PostgreSQL or the limit would
    reject.
    """
    try:
        if isinstance(value, JsonText):
            text, printed = value.text, jsonb_text(value.text)
        else:
            text = printed = _written(value)
        size = len(_utf8(name, printed))
        if "\\u0000" in text and any("\0" in part for part in _strings(json.loads(text))):
            raise InvalidJson(f"{name} contains a NUL character, which PostgreSQL's jsonb cannot hold")
        if size + _GROWTH * len(_EXPONENT.findall(text)) > limit:
            _check_size(name, len(jsonb_text(text).encode()), limit)
    except EventError:
        raise
    except TypeError as error:
        raise InvalidJson(f"{name} is not JSON: {error}") from None
    except ValueError as error:
        raise InvalidJson(f"{name} is not JSON: {_reason(error)}") from None
    except InvalidOperation:
        raise InvalidJson(f"{name} is not JSON: {_UNFIT}") from None
    except RecursionError:
        raise InvalidJson(f"{name} is not JSON: nested too deeply") from None
    return text


def _reason(error: ValueError) -> str:
    if "Out of range float" in str(error):
        return "NaN and Infinity have no JSON form"
    return str(error)


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from _strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)


_Tree: TypeAlias = "bool | str | Decimal | list[_Tree] | dict[str, _Tree] | None"


def jsonb_text(text: str) -> str:
    """Print a JSON text as PostgreSQL's jsonb does.

    Keys by length in bytes, then by bytes, the last of equal ones wins; one blank after `:` and `,`;
    numbers without exponent, digits as given (`1.50`, `1e3` is `1000`); escapes become characters.
    Raises ValueError for invalid JSON, and for a number that jsonb cannot hold.
    """
    tree: _Tree = json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_no_constant)
    return "".join(_printed(tree))


def _no_constant(name: str) -> Decimal:
    raise ValueError(f"{name} has no JSON form")


def _printed(tree: _Tree) -> Iterator[str]:
    if isinstance(tree, dict):
        members = sorted(tree, key=_key_order)
        yield "{"
        for at, key in enumerate(members):
            yield f"{', ' if at else ''}{_quoted(key)}: "
            yield from _printed(tree[key])
        yield "}"
    elif isinstance(tree, list):
        yield "["
        for at, member in enumerate(tree):
            if at:
                yield ", "
            yield from _printed(member)
        yield "]"
    elif isinstance(tree, Decimal):
        yield _number(tree)
    else:
        yield _quoted(tree)


_quoted: Final[Callable[[object], str]] = json.JSONEncoder(ensure_ascii=False).encode
# Made once: json.dumps makes an encoder for every call that has options.
_written: Final[Callable[[object], str]] = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _key_order(key: str) -> tuple[int, bytes]:
    raw = key.encode()
    return len(raw), raw


def _number(value: Decimal) -> str:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # JSON has no NaN
    if exponent < -_MAX_SCALE or (value and value.adjusted() > _MAX_WEIGHT):
        raise ValueError(_UNFIT)
    printed = format(value, "f")
    return printed.removeprefix("-") if not value else printed


def record_of(event: Event, topic: str, payload: Payload | None = None) -> Record:
    """Build the record that an event becomes once its row is committed. Raises EventError."""
    encoded = encode(event, payload)
    body = encoded.payload
    printed = {
        "id": str(event.id),
        "event_version": str(event.event_version),
        "occurred_at": record.time_text(event.occurred_at),
        "headers": None if encoded.headers is None else jsonb_text(encoded.headers),
    }
    texts = ((name, printed[name] if name in printed else getattr(event, name)) for name in record.HEADERS)
    return Record(
        topic,
        event.aggregate_id.encode(),
        jsonb_text(body).encode() if isinstance(body, str) else body,
        tuple((name, None if text is None else text.encode()) for name, text in texts),
    )
