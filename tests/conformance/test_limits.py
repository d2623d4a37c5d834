"""`event.validate` and the table's CHECK constraints refuse the same, down to the last byte."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from fix_stack import Database, Stack
from outbox_connectors import record
from outbox_connectors.definition import Outbox, Partitioning, Payload, TableName
from outbox_connectors.errors import EventError
from outbox_connectors.event import validate
from outbox_connectors.record import Event
from outbox_pipeline.provision import tables

pytestmark = pytest.mark.stack

EVENT = Event(
    id=uuid.UUID(int=1),
    aggregate_type="order",
    aggregate_id="42",
    event_type="OrderPlaced",
    payload={},
    occurred_at=datetime(2026, 11, 29, tzinfo=UTC),
)

# Each text field: the largest that fits and one byte more; JSON is measured the way jsonb prints it.
FITS: tuple[dict[str, Any], ...] = (
    {"aggregate_type": "x" * record.MAX_AGGREGATE_TYPE},
    {"aggregate_type": "a.b_C-9"},
    {"aggregate_id": "ü" * (record.MAX_AGGREGATE_ID // 2)},
    {"event_type": "x" * record.MAX_EVENT_TYPE},
    {"traceparent": "x" * record.MAX_TRACE_TEXT, "correlation_id": ""},
    {"headers": ["x" * (record.MAX_HEADERS_BYTES - 4)]},
    {"payload": "x" * (record.MAX_PAYLOAD_BYTES - 2)},
    {"payload": ["ü" * ((record.MAX_PAYLOAD_BYTES - 4) // 2)]},
    {"payload": [1e300] * 3300},
    {"event_version": record.MIN_EVENT_VERSION},
)
TOO_MUCH: tuple[dict[str, Any], ...] = (
    {"aggregate_type": "x" * (record.MAX_AGGREGATE_TYPE + 1)},
    {"aggregate_type": ""},
    {"aggregate_type": "."},
    {"aggregate_type": ".."},
    {"aggregate_type": "an order"},
    {"aggregate_type": "order\n"},
    {"aggregate_type": "größe"},
    {"aggregate_id": ""},
    {"aggregate_id": "x" * (record.MAX_AGGREGATE_ID + 1)},
    {"event_type": ""},
    {"event_type": "x" * (record.MAX_EVENT_TYPE + 1)},
    {"traceparent": "x" * (record.MAX_TRACE_TEXT + 1)},
    {"correlation_id": "x" * (record.MAX_TRACE_TEXT + 1)},
    {"causation_id": "x" * (record.MAX_TRACE_TEXT + 1)},
    {"headers": ["x" * (record.MAX_HEADERS_BYTES - 3)]},
    {"payload": "x" * (record.MAX_PAYLOAD_BYTES - 1)},
    {"payload": [1e300] * 3301},
)


@pytest.fixture
def outboxes(postgres: Stack, new_database: Callable[[Stack], Database]) -> Iterator[psycopg.Connection[Any]]:
    """A session on a database with a jsonb outbox `j.outbox` and a bytea outbox `b.outbox`."""
    with new_database(postgres).connect() as conn:
        for schema, payload in (("j", Payload.JSONB), ("b", Payload.BYTEA)):
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            table = TableName(schema, "outbox")
            outbox = Outbox(table, (), payload, Partitioning.NONE, timedelta(days=7))
            for statement in tables.ddl(outbox, datetime(2026, 11, 29, tzinfo=UTC).date()):
                conn.execute(statement)
        yield conn


def insert(conn: psycopg.Connection[Any], event: Event, schema: str = "j") -> None:
    """Write a row the way any other program would, and take it back."""
    values = dataclasses.asdict(event)
    for name in ("payload", "headers"):
        if values[name] is not None and not isinstance(values[name], bytes):
            values[name] = Jsonb(values[name])
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(schema, "outbox"),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(map(sql.Placeholder, values)),
    )
    with conn.transaction(force_rollback=True):
        conn.execute(statement, values)


@pytest.mark.parametrize("change", FITS, ids=lambda change: next(iter(change)))
def test_what_fits_here_fits_there(outboxes: psycopg.Connection[Any], change: dict[str, Any]) -> None:
    event = replace(EVENT, **change)
    validate(event)
    insert(outboxes, event)


@pytest.mark.parametrize("change", TOO_MUCH, ids=lambda change: next(iter(change)))
def test_what_is_refused_here_is_refused_there(
    outboxes: psycopg.Connection[Any], change: dict[str, Any]
) -> None:
    event = replace(EVENT, **change)
    with pytest.raises(EventError):
        validate(event)
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(outboxes, event)


def test_bytes_have_the_same_limit(outboxes: psycopg.Connection[Any]) -> None:
    fits = replace(EVENT, payload=b"x" * record.MAX_PAYLOAD_BYTES)
    validate(fits)
    insert(outboxes, fits, "b")
    too_much = replace(EVENT, payload=b"x" * (record.MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(EventError):
        validate(too_much)
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(outboxes, too_much, "b")
