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

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TypeAlias, overload
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from uuid_utils.compat import uuid7

from outbox_connectors.definition import TableName
from outbox_connectors.event import Encoded, encode
from outbox_connectors.record import Event, Json, JsonText
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
_COMMENT = re.compile(r"^--.*$", re.M)


def new_id() -> UUID:
    """Make an event id: a UUIDv7, greater than every id this process made before."""
    return uuid7()


def event(
    *,
    aggregate_type: str,
    aggregate_id: str,
    event_type: str,
    payload: Json | JsonText | bytes,
    event_version: int = 1,
    headers: Json | JsonText = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    traceparent: str | None = None,
    event_id: UUID | None = None,
    occurred_at: datetime | None = None,
) -> Event:
    """Make an event for `add_many` or `statement`; the fields mean what they mean in `add`."""
    return Event(
        id=event_id or new_id(),
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        event_type=event_type,
        payload=payload,
        event_version=event_version,
        headers=headers,
        correlation_id=correlation_id,
        causation_id=causation_id,
        traceparent=traceparent,
        occurred_at=occurred_at or datetime.now(UTC),
    )


def add(
    conn: psycopg.Connection[Any],
    *,
    aggregate_type: str,
    aggregate_id: str,
    event_type: str,
    payload: Json | JsonText | bytes,
    event_version: int = 1,
    headers: Json | JsonText = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    traceparent: str | None = None,
    event_id: UUID | None = None,
    occurred_at: datetime | None = None,
    keep: bool = True,
    table: str | TableName = DEFAULT_TABLE,
    allow_autocommit: bool = False,
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
    one = event(
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        event_type=event_type,
        payload=payload,
        event_version=event_version,
        headers=headers,
        correlation_id=correlation_id,
        causation_id=causation_id,
        traceparent=traceparent,
        event_id=event_id,
        occurred_at=occurred_at,
    )
    query, values = _one(one, table)
    _check_connection(conn, psycopg.Connection, allow_autocommit)
    # A cursor of the plain kind: the connection's own cursor_factory may not know %(name)s.
    with psycopg.Cursor(conn) as cursor:
        cursor.execute(query, values)
        if not keep:
            cursor.execute(*_removal([one.id], table))
    return one.id


async def add_async(
    conn: psycopg.AsyncConnection[Any],
    *,
    aggregate_type: str,
    aggregate_id: str,
    event_type: str,
    payload: Json | JsonText | bytes,
    event_version: int = 1,
    headers: Json | JsonText = None,
    correlation_id: str | None = None,
    causation_id: str | None = None,
    traceparent: str | None = None,
    event_id: UUID | None = None,
    occurred_at: datetime | None = None,
    keep: bool = True,
    table: str | TableName = DEFAULT_TABLE,
    allow_autocommit: bool = False,
) -> UUID:
    """Write one event in the caller's transaction on an AsyncConnection; see `add`."""
    one = event(
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        event_type=event_type,
        payload=payload,
        event_version=event_version,
        headers=headers,
        correlation_id=correlation_id,
        causation_id=causation_id,
        traceparent=traceparent,
        event_id=event_id,
        occurred_at=occurred_at,
    )
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
    name, values = _named_statement(event)
    text = " ".join(_COMMENT.sub("", statements.get(name)).split())
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


def _named_statement(event: Event) -> tuple[str, dict[str, Any]]:
    encoded = encode(event)
    values: dict[str, Any] = {
        "id": event.id,
        "aggregate_type": event.aggregate_type,
        "aggregate_id": event.aggregate_id,
        "event_type": event.event_type,
        "event_version": event.event_version,
        "occurred_at": event.occurred_at,
        "traceparent": event.traceparent,
        "correlation_id": event.correlation_id,
        "causation_id": event.causation_id,
        "headers": encoded.headers,
    }
    if encoded.payload is None:
        return "add_event_tombstone", values
    values["payload"] = encoded.payload
    return ("add_event" if isinstance(encoded.payload, str) else "add_event_bytea"), values


def _one(event: Event, table: str | TableName) -> tuple[sql.Composed, dict[str, Any]]:
    name, values = _named_statement(event)
    return _composed(name, table), values


def _removal(ids: list[UUID], table: str | TableName) -> tuple[sql.Composed, dict[str, Any]]:
    *schema, name = _parts(table)
    settings = sql.Identifier(*schema, f"{name}_relay").as_string(None)
    return _composed("remove_events", table), {"ids": ids, "relay_settings": settings}


def _many(
    events: Iterable[Event], table: str | TableName
) -> tuple[list[UUID], Iterator[tuple[sql.Composed, dict[str, Any]]]]:
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
    name = "add_events" if has_text else "add_events_bytea" if has_bytes else "add_events_tombstone"
    query = _composed(name, table)
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
    return {
        "id": [event.id for event, _ in part],
        "aggregate_type": [event.aggregate_type for event, _ in part],
        "aggregate_id": [event.aggregate_id for event, _ in part],
        "event_type": [event.event_type for event, _ in part],
        "event_version": [event.event_version for event, _ in part],
        "payload": [encoded.payload for _, encoded in part],
        "occurred_at": [event.occurred_at for event, _ in part],
        "traceparent": [event.traceparent for event, _ in part],
        "correlation_id": [event.correlation_id for event, _ in part],
        "causation_id": [event.causation_id for event, _ in part],
        "headers": [encoded.headers for _, encoded in part],
    }


@lru_cache(maxsize=64)
def _composed(name: str, table: str | TableName) -> sql.Composed:
    return sql.SQL(statements.get(name)).format(table=_identifier(table))


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
