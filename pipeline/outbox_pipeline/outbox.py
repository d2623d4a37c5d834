"""Write events into the outbox, in the transaction that holds the data they speak of.

    with psycopg.connect("dbname=shop") as conn:
        conn.execute("INSERT INTO orders (id, total) VALUES (%s, %s)", (42, 99))
        outbox.add(conn, aggregate_type="order", aggregate_id="42", event_type="OrderPlaced",
                   payload={"total": 99})
    # both are committed here, or neither is

Nothing here commits, opens a connection or retries: the transaction is the caller's, and psycopg's
own errors pass through untouched. An event that could never be delivered raises an EventError (a
ValueError) before the database is touched. Ids are UUIDv7 and grow within a process, over threads
too; a forked child goes on with ids of its own.

On a connection in autocommit mode an event would commit by itself, whatever becomes of the data it
speaks of. So the functions raise UsageError there, unless `conn.transaction()` is open (or
`allow_autocommit=True` says that there is no data).

Other drivers: `statement(event(...))` gives SQL and parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, LiteralString, TypeAlias, TypeVar, Unpack, overload
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from uuid_utils.compat import uuid7

from outbox_connectors.definition import Payload, TableName
from outbox_connectors.event import Encoded, encode
from outbox_connectors.record import WRITTEN, Event, EventFields, JsonText
from outbox_pipeline import inserts
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import EventError, UsageError

__all__ = [
    "Event",
    "EventError",
    "JsonText",
    "add",
    "add_async",
    "add_many",
    "add_many_async",
    "event",
    "new_id",
    "statement",
]

DEFAULT_TABLE = "public.outbox"
# One round trip each. Larger chunks gained nothing; the bytes bound what a chunk of large payloads takes.
CHUNK_ROWS = 1000
CHUNK_BYTES = 4_000_000

Connection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"
ParamStyle = Literal["pyformat", "format", "named", "qmark", "numeric", "numeric_dollar"]
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_COLUMNS = tuple(column.name for column in WRITTEN)
_fields = attrgetter(*_COLUMNS)
_COMMENT = re.compile(r"^--.*$", re.M)


_F = TypeVar("_F", bound=Callable[..., object])


def _shows_event_fields(function: _F) -> _F:
    """Let `help()` and completion at run time show each of the event's fields with its default."""
    own = inspect.signature(function)
    fields = inspect.signature(Event).parameters
    shown = {name: fields[name] for name in EventFields.__annotations__}
    shown |= {name: one for name, one in own.parameters.items() if one.kind is not one.VAR_KEYWORD}
    order = sorted(shown.values(), key=lambda one: (one.kind, one.default is not one.empty))
    function.__dict__["__signature__"] = own.replace(parameters=order)
    return function


def new_id() -> UUID:
    """Make an event id: a UUIDv7, greater than every id this process made before."""
    return uuid7()


@_shows_event_fields
def event(
    *,
    event_id: UUID | None = None,
    occurred_at: datetime | None = None,
    **fields: Unpack[EventFields],
) -> Event:
    """Make an event for `add_many` or `statement`; the fields mean what they mean in `add`."""
    return Event(id=event_id or new_id(), occurred_at=occurred_at or datetime.now(UTC), **fields)


@_shows_event_fields
def add(
    conn: psycopg.Connection[Any],
    *,
    event_id: UUID | None = None,
    occurred_at: datetime | None = None,
    keep: bool = True,
    table: str | TableName = DEFAULT_TABLE,
    allow_autocommit: bool = False,
    **fields: Unpack[EventFields],
) -> UUID:
    """Write one event in the caller's transaction and return its id. Never commits.

    `aggregate_type` chooses the topic, `aggregate_id` is the record's key: events of one aggregate
    keep the order of their commits. `payload` is a JSON value (JsonText where it is written already),
    bytes for an outbox with a bytea column, or None for a tombstone. `event_id` makes a retried request
    write the same event again, which the primary key refuses; None makes a new UUIDv7. `occurred_at`
    None is now, by this machine's clock. `traceparent` None stays NULL: nothing reads an ambient trace
    context. Raises EventError (nothing was sent) and UsageError in autocommit mode; psycopg's errors
    pass through.
    """
    one = event(event_id=event_id, occurred_at=occurred_at, **fields)
    query, values = _one(one, table)
    _check_connection(conn, psycopg.Connection, allow_autocommit)
    # A cursor of the plain kind: the connection's own cursor_factory may not know %(name)s.
    with psycopg.Cursor(conn) as cursor:
        cursor.execute(query, values)
        if not keep:
            cursor.execute(*_removal([one.id], table))
    return one.id


@_shows_event_fields
async def add_async(
    conn: psycopg.AsyncConnection[Any],
    *,
    event_id: UUID | None = None,
    occurred_at: datetime | None = None,
    keep: bool = True,
    table: str | TableName = DEFAULT_TABLE,
    allow_autocommit: bool = False,
    **fields: Unpack[EventFields],
) -> UUID:
    """Write one event in the caller's transaction on an AsyncConnection; see `add`."""
    one = event(event_id=event_id, occurred_at=occurred_at, **fields)
    query, values = _one(one, table)
    _check_connection(conn, psycopg.AsyncConnection, allow_autocommit)
    async with psycopg.AsyncCursor(conn) as cursor:
        await cursor.execute(query, values)
        if not keep:
            await cursor.execute(*_removal([one.id], table))
    return one.id


def add_many(
    conn: psycopg.Connection[Any],
    events: Iterable[Event],
    *,
    keep: bool = True,
    table: str | TableName = DEFAULT_TABLE,
    allow_autocommit: bool = False,
) -> list[UUID]:
    """Write events in the order given, a thousand in a round trip, and return their ids. Never commits.

    All of them are checked before the first is sent, so they are held in memory: hand over some ten
    thousand at a time. Raises EventError for the first bad one and UsageError, as `add` does.
    """
    ids, chunks = _many(events, table)
    _check_connection(conn, psycopg.Connection, allow_autocommit)
    with psycopg.Cursor(conn) as cursor:
        for query, values in chunks:
            cursor.execute(query, values)
        if not keep:
            cursor.execute(*_removal(ids, table))
    return ids


async def add_many_async(
    conn: psycopg.AsyncConnection[Any],
    events: Iterable[Event],
    *,
    keep: bool = True,
    table: str | TableName = DEFAULT_TABLE,
    allow_autocommit: bool = False,
) -> list[UUID]:
    """Write events on an AsyncConnection; see `add_many`."""
    ids, chunks = _many(events, table)
    _check_connection(conn, psycopg.AsyncConnection, allow_autocommit)
    async with psycopg.AsyncCursor(conn) as cursor:
        for query, values in chunks:
            await cursor.execute(query, values)
        if not keep:
            await cursor.execute(*_removal(ids, table))
    return ids


@overload
def statement(
    event: Event,
    paramstyle: Literal["pyformat", "named"] = "pyformat",
    *,
    table: str | TableName = DEFAULT_TABLE,
) -> tuple[str, dict[str, Any]]: ...
@overload
def statement(
    event: Event,
    paramstyle: Literal["format", "qmark", "numeric", "numeric_dollar"],
    *,
    table: str | TableName = DEFAULT_TABLE,
) -> tuple[str, tuple[Any, ...]]: ...
def statement(
    event: Event, paramstyle: ParamStyle = "pyformat", *, table: str | TableName = DEFAULT_TABLE
) -> tuple[str, dict[str, Any] | tuple[Any, ...]]:
    """Give the INSERT of an event and its parameters, for a driver other than psycopg 3.

    The styles are those of PEP 249: `pyformat` and `named` (SQLAlchemy's `text()`) with a dict,
    `format`, `qmark` and `numeric` with a tuple; `numeric_dollar` is `$1`, for asyncpg. Parameters
    are str, int, bytes, None and an aware datetime, which every driver can send. Execute it in the
    transaction of the data. Raises EventError.

        cursor.execute(*outbox.statement(event))                # Django, psycopg2: inside atomic()
        text, values = outbox.statement(event, "named")
        session.execute(sqlalchemy.text(text), values)          # SQLAlchemy
    """
    payload, values = _parameters(event)
    text = " ".join(_COMMENT.sub("", inserts.add_event(payload)).split())
    if paramstyle in ("pyformat", "format"):
        text = text.replace("{table}", _identifier(table).as_string(None).replace("%", "%%"))
    else:
        text = text.replace("{table}", _identifier(table).as_string(None))
    values["id"] = str(event.id)
    names: list[str] = _PLACEHOLDER.findall(text)
    if paramstyle == "pyformat":
        return text, values
    numbers = iter(range(1, len(names) + 1))
    forms = {"format": "%s", "named": ":{name}", "qmark": "?", "numeric": ":{n}", "numeric_dollar": "${n}"}
    if paramstyle not in forms:
        raise UsageError(f"{paramstyle!r} is no parameter style", remedy=f"use pyformat, {', '.join(forms)}")
    form = forms[paramstyle]
    text = _PLACEHOLDER.sub(lambda found: form.format(name=found[1], n=next(numbers)), text)
    return text, values if paramstyle == "named" else tuple(values[name] for name in names)


def _parameters(event: Event) -> tuple[Payload | None, dict[str, Any]]:
    """Check an event; give the type its payload needs (None: a tombstone) and the values to send."""
    encoded = encode(event)
    values = dict(zip(_COLUMNS, _fields(event), strict=True))
    values["headers"] = encoded.headers
    if encoded.payload is None:
        del values["payload"]
        return None, values
    values["payload"] = encoded.payload
    return (Payload.JSONB if isinstance(encoded.payload, str) else Payload.BYTEA), values


def _one(event: Event, table: str | TableName) -> tuple[sql.SQL, dict[str, Any]]:
    payload, values = _parameters(event)
    return _composed(inserts.add_event(payload), table), values


def _removal(ids: list[UUID], table: str | TableName) -> tuple[sql.SQL, dict[str, Any]]:
    *schema, name = _parts(table)
    settings = sql.Identifier(*schema, f"{name}_relay").as_string(None)
    return _composed(statements.get("remove_events"), table), {"ids": ids, "relay_settings": settings}


def _many(
    events: Iterable[Event], table: str | TableName
) -> tuple[list[UUID], Iterator[tuple[sql.SQL, dict[str, Any]]]]:
    """Check all events and cut them into statements."""
    checked = [(event, encode(event)) for event in events]
    has_text = any(isinstance(encoded.payload, str) for _, encoded in checked)
    has_bytes = any(isinstance(encoded.payload, bytes) for _, encoded in checked)
    if has_text and has_bytes:
        raise EventError(
            "some payloads are JSON and some are bytes, but a table holds one kind",
            remedy="write them with one call for each table",
        )
    ids = [event.id for event, _ in checked]
    payload = Payload.JSONB if has_text else Payload.BYTEA if has_bytes else None
    query = _composed(inserts.add_events(payload), table)
    return ids, ((query, _columns(part)) for part in _chunks(checked))


def _chunks(checked: list[tuple[Event, Encoded]]) -> Iterator[list[tuple[Event, Encoded]]]:
    part: list[tuple[Event, Encoded]] = []
    size = 0
    for pair in checked:
        part.append(pair)
        size += len(pair[1].payload or "") + len(pair[1].headers or "")
        if len(part) == CHUNK_ROWS or size > CHUNK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _columns(part: list[tuple[Event, Encoded]]) -> dict[str, Any]:
    rows = (_fields(event) for event, _ in part)
    columns = dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    columns["payload"] = [encoded.payload for _, encoded in part]
    columns["headers"] = [encoded.headers for _, encoded in part]
    return columns


@lru_cache(maxsize=64)
def _composed(text: LiteralString, table: str | TableName) -> sql.SQL:
    # One piece: psycopg would put the pieces of a Composed together at every execution.
    return sql.SQL(sql.SQL(text).format(table=_identifier(table)).as_string(None))


def _identifier(table: str | TableName) -> sql.Identifier:
    return sql.Identifier(*_parts(table))


def _parts(table: str | TableName) -> tuple[str, ...]:
    if isinstance(table, TableName):
        return table.schema, table.name
    parts = tuple(table.split("."))
    if len(parts) > 2 or not all(parts):
        raise UsageError(f"{table!r} is no table name", remedy="write it as schema.table, without quotes")
    return parts


def _check_connection(conn: object, kind: type[Connection], allow_autocommit: bool) -> None:
    """Refuse what is no connection, and one on which the event would be committed apart from its data."""
    if not isinstance(conn, kind):
        raise UsageError(
            f"conn is a {type(conn).__module__}.{type(conn).__qualname__}, not a psycopg.{kind.__name__}",
            remedy="give the driver's own connection, or execute outbox.statement()",
        )
    if conn.autocommit and not allow_autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise UsageError(
            "the connection is in autocommit mode, the event would be committed without its data",
            remedy="open conn.transaction() around both, or pass allow_autocommit=True",
        )
