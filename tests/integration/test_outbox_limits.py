"""Every limit of the contract is a CHECK of the table: a row that Kafka could not take cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from fix_provision import MAJORS
from fix_stack import Stack
from outbox_connectors import loading, record
from outbox_connectors.definition import TableName
from outbox_pipeline.provision import tables

pytestmark = [pytest.mark.stack, pytest.mark.matrix]

ROW: dict[str, Any] = {
    "aggregate_type": "order",
    "aggregate_id": "42",
    "event_type": "OrderPlaced",
    "event_version": 1,
    "payload": None,
    "occurred_at": "2026-11-29 12:00:00+00",
    "traceparent": None,
    "correlation_id": None,
    "causation_id": None,
    "headers": None,
}
REQUIRED = ("id", "aggregate_type", "aggregate_id", "event_type", "event_version", "occurred_at")
DEFINITION = loading.load(Path(__file__).parents[2] / "connectors" / "outbox.yaml", {})


@pytest.fixture(scope="module", params=MAJORS, ids=lambda major: f"pg{major}")
def session(
    request: pytest.FixtureRequest, postgres_server: Callable[[int], Stack]
) -> Iterator[psycopg.Connection]:
    """A session in whose temporary transaction there is an outbox table; nothing of it stays."""
    with psycopg.connect(postgres_server(request.param).conninfo()) as conn:
        conn.execute("CREATE SCHEMA events")
        outbox = replace(DEFINITION.outbox, table=TableName("events", "outbox"))
        for statement in tables.ddl(outbox, date(2026, 11, 29)):
            conn.execute(statement)
        yield conn
        conn.rollback()


def insert(conn: psycopg.Connection, **changed: Any) -> None:
    """Insert a row and take it back."""
    row = {"id": uuid4(), **ROW, **changed}
    names = sql.SQL(", ").join(map(sql.Identifier, row))
    values = sql.SQL(", ").join(map(sql.Placeholder, row))
    with conn.transaction(force_rollback=True):
        conn.execute(sql.SQL("INSERT INTO events.outbox ({}) VALUES ({})").format(names, values), row)


@pytest.mark.parametrize(
    ("column", "value", "constraint"),
    [
        ("aggregate_type", "", "aggregate_type_fits_a_topic"),
        ("aggregate_type", "bad topic!", "aggregate_type_fits_a_topic"),
        ("aggregate_type", "order\n", "aggregate_type_fits_a_topic"),
        ("aggregate_type", "ordér", "aggregate_type_fits_a_topic"),
        ("aggregate_type", ".", "aggregate_type_fits_a_topic"),
        ("aggregate_type", "..", "aggregate_type_fits_a_topic"),
        ("aggregate_type", "a" * (record.MAX_AGGREGATE_TYPE + 1), "aggregate_type_fits_a_topic"),
        ("aggregate_id", "", "aggregate_id_fits_a_key"),
        ("aggregate_id", "é" * (record.MAX_AGGREGATE_ID // 2 + 1), "aggregate_id_fits_a_key"),
        ("event_type", "", "event_type_fits_a_header"),
        ("event_type", "é" * (record.MAX_EVENT_TYPE // 2 + 1), "event_type_fits_a_header"),
        ("traceparent", "x" * (record.MAX_TRACE_TEXT + 1), "traceparent_fits_a_header"),
        ("correlation_id", "x" * (record.MAX_TRACE_TEXT + 1), "correlation_id_fits_a_header"),
        ("causation_id", "x" * (record.MAX_TRACE_TEXT + 1), "causation_id_fits_a_header"),
        ("headers", f'"{"x" * (record.MAX_HEADERS_BYTES - 1)}"', "headers_fit_a_header"),
        ("payload", f'"{"x" * (record.MAX_PAYLOAD_BYTES - 1)}"', "payload_fits_a_record"),
    ],
)
def test_a_row_that_kafka_could_not_take_is_refused(
    session: psycopg.Connection, column: str, value: str, constraint: str
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as refusal:
        insert(session, **{column: value})
    assert refusal.value.diag.constraint_name == constraint


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("aggregate_type", "a" * record.MAX_AGGREGATE_TYPE),
        ("aggregate_type", "Order.line_item-2"),
        ("aggregate_type", "..."),
        ("aggregate_id", "é" * (record.MAX_AGGREGATE_ID // 2)),
        ("event_type", "x" * record.MAX_EVENT_TYPE),
        ("traceparent", "x" * record.MAX_TRACE_TEXT),
        ("traceparent", ""),
        ("headers", f'"{"x" * (record.MAX_HEADERS_BYTES - 2)}"'),
        ("payload", f'"{"x" * (record.MAX_PAYLOAD_BYTES - 2)}"'),
        ("payload", None),
        ("event_version", -(2**31)),
        ("occurred_at", "infinity"),
    ],
)
def test_a_row_at_the_limits_is_taken(session: psycopg.Connection, column: str, value: str) -> None:
    insert(session, **{column: value})


@pytest.mark.parametrize("column", REQUIRED)
def test_null_is_refused_where_the_contract_needs_a_value(session: psycopg.Connection, column: str) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation):
        insert(session, **{column: None})
