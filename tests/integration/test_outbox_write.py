"""outbox.add and its siblings on a real server: one transaction with the data, or nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import set_json_dumps

from fix_stack import Database
from outbox_connectors import loading
from outbox_connectors.definition import Outbox, Payload, TableName
from outbox_pipeline import outbox
from outbox_pipeline.errors import EventError, UsageError
from outbox_pipeline.provision import tables

pytestmark = pytest.mark.stack

DEFINITION = loading.load(Path(__file__).parents[2] / "connectors" / "outbox.yaml", {})
BINARY = replace(DEFINITION.outbox, table=TableName("public", "Binary outbox"), payload=Payload.BYTEA)


def create(conn: psycopg.Connection[Any], wanted: Outbox) -> None:
    for statement in tables.ddl(wanted, date(2026, 11, 29)):
        conn.execute(statement)


@pytest.fixture
def conn(database: Database) -> Iterator[psycopg.Connection]:
    with database.connect() as admin:
        create(admin, DEFINITION.outbox)
        create(admin, BINARY)
        admin.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with psycopg.connect(database.conninfo) as conn:
        yield conn


def rows(conn: psycopg.Connection, table: TableName = DEFINITION.outbox.table) -> list[dict[str, Any]]:
    query = sql.SQL("SELECT * FROM {} ORDER BY position").format(tables.identifier(table))
    with psycopg.Cursor(conn, row_factory=dict_row) as cursor:
        return cursor.execute(query).fetchall()


def placed(number: int, payload: Any = None) -> outbox.Event:
    return outbox.event(
        aggregate_type="order", aggregate_id=str(number), event_type="OrderPlaced", payload=payload
    )


def test_every_field_reaches_its_column(conn: psycopg.Connection) -> None:
    when = datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    given = outbox.new_id()
    returned = outbox.add(
        conn,
        aggregate_type="order",
        aggregate_id="42",
        event_type="OrderPlaced",
        payload={"total": 1.5, "note": "Zoë \\u \" '", "list": [None, True]},
        event_version=3,
        headers={"tenant": "acme"},
        correlation_id="c-1",
        causation_id="m-1",
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        event_id=given,
        occurred_at=when,
    )
    (row,) = rows(conn)
    assert returned == given == row["id"]
    del row["position"]
    assert row == {
        "id": given,
        "aggregate_type": "order",
        "aggregate_id": "42",
        "event_type": "OrderPlaced",
        "event_version": 3,
        "payload": {"total": 1.5, "note": "Zoë \\u \" '", "list": [None, True]},
        "occurred_at": when,
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "correlation_id": "c-1",
        "causation_id": "m-1",
        "headers": {"tenant": "acme"},
    }


def test_what_is_not_given_stays_null(conn: psycopg.Connection) -> None:
    before = datetime.now(UTC)
    returned = outbox.add(
        conn, aggregate_type="order", aggregate_id="1", event_type="OrderForgotten", payload=None
    )
    (row,) = rows(conn)
    assert (row["id"], row["event_version"]) == (returned, 1)
    assert before <= row["occurred_at"] <= datetime.now(UTC)
    nullable = ("payload", "traceparent", "correlation_id", "causation_id", "headers")
    assert [row[name] for name in nullable] == [None] * 5


def test_event_and_data_are_committed_together_or_not_at_all(
    conn: psycopg.Connection, database: Database
) -> None:
    conn.execute("INSERT INTO orders VALUES (1)")
    outbox.add_many(conn, [placed(1, {})])
    conn.rollback()
    conn.execute("INSERT INTO orders VALUES (2)")
    outbox.add_many(conn, [placed(2, {})])
    with database.connect() as other:
        assert rows(other) == []  # add_many has not committed
    conn.commit()
    with database.connect() as other:
        assert [row["aggregate_id"] for row in rows(other)] == ["2"]
        assert other.execute("SELECT id FROM orders").fetchall() == [(2,)]


def test_add_many_keeps_the_order_over_several_round_trips(conn: psycopg.Connection) -> None:
    events = [placed(n, None if n % 7 == 0 else {"n": n}) for n in range(2 * outbox.CHUNK_ROWS + 5)]
    assert outbox.add_many(conn, iter(events)) == [event.id for event in events]
    written = rows(conn)
    assert [row["id"] for row in written] == [event.id for event in events]
    assert [row["payload"] for row in written] == [event.payload for event in events]


def test_add_many_takes_a_thousand_rows_in_one_round_trip(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0
    execute = psycopg.Cursor.execute

    def counted(self: psycopg.Cursor[Any], *arguments: Any, **named: Any) -> Any:
        nonlocal sent
        sent += 1
        return execute(self, *arguments, **named)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    outbox.add_many(conn, [placed(n, {"n": n}) for n in range(3000)])
    assert sent == 3


def test_large_payloads_are_cut_into_bounded_statements(conn: psycopg.Connection) -> None:
    events = [placed(n, "x" * 900_000) for n in range(12)]
    outbox.add_many(conn, events)
    assert len(rows(conn)) == 12


def test_add_many_of_nothing_sends_nothing(database: Database) -> None:
    with psycopg.connect(database.conninfo) as conn:  # there is no table
        assert outbox.add_many(conn, []) == []


def test_one_bad_event_keeps_all_of_them_out(conn: psycopg.Connection) -> None:
    with pytest.raises(EventError, match="aggregate_id is empty"):
        outbox.add_many(conn, [*(placed(n, {}) for n in range(1500)), replace(placed(1), aggregate_id="")])
    assert rows(conn) == []
    with pytest.raises(ValueError, match="some payloads are JSON and some are bytes"):
        outbox.add_many(conn, [placed(1, {}), placed(2, b"")])
    assert rows(conn) == []


def test_bytes_go_into_a_bytea_outbox(conn: psycopg.Connection) -> None:
    for payload in (b"\x00\xff\\", b"", None):
        outbox.add(
            conn,
            aggregate_type="order",
            aggregate_id="1",
            event_type="OrderPlaced",
            payload=payload,
            table=BINARY.table,
        )
    outbox.add_many(conn, [placed(1, b"\x00"), placed(2), placed(3, b"")], table=BINARY.table)
    outbox.add_many(conn, [placed(4), placed(5)], table=BINARY.table)
    stored = [row["payload"] for row in rows(conn, BINARY.table)]
    assert stored == [b"\x00\xff\\", b"", None, b"\x00", None, b"", None, None]


def test_a_payload_of_the_other_kind_is_the_servers_error(conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.DatatypeMismatch):
        outbox.add_many(conn, [placed(1, b"bytes")])
    conn.rollback()
    with pytest.raises(psycopg.errors.DatatypeMismatch):
        outbox.add_many(conn, [placed(1, {"json": 1})], table=BINARY.table)


def test_psycopg_errors_pass_through(conn: psycopg.Connection) -> None:
    event = placed(1, {})
    outbox.add_many(conn, [event])
    with pytest.raises(psycopg.errors.UniqueViolation):
        outbox.add_many(conn, [event])
    conn.rollback()
    with pytest.raises(psycopg.errors.UndefinedTable):
        outbox.add_many(conn, [event], table="nowhere")


def test_autocommit_needs_an_open_transaction(conn: psycopg.Connection, database: Database) -> None:
    with database.connect() as single:
        fields: dict[str, Any] = {
            "aggregate_type": "order",
            "aggregate_id": "1",
            "event_type": "OrderPlaced",
            "payload": {},
        }
        with pytest.raises(UsageError, match="autocommit mode"):
            outbox.add(single, **fields)
        with pytest.raises(UsageError, match=r"open conn.transaction\(\)"):
            outbox.add_many(single, [placed(1)])
        assert rows(single) == []
        with single.transaction():
            outbox.add(single, **fields)
        with single.transaction(), single.pipeline():
            outbox.add(single, **fields)
        with single.pipeline(), single.transaction():
            outbox.add(single, **fields)
        outbox.add(single, **fields, allow_autocommit=True)
        assert len(rows(single)) == 4


def test_what_is_no_connection_is_refused_by_name(conn: psycopg.Connection, database: Database) -> None:
    wrong: Any = conn.cursor()
    with pytest.raises(UsageError, match=r"conn is a psycopg\.Cursor, not a psycopg\.Connection; give"):
        outbox.add_many(wrong, [placed(1)])

    async def mixed_up() -> None:
        async with await psycopg.AsyncConnection.connect(database.conninfo) as other:
            wrong: Any = other
            with pytest.raises(UsageError, match=r"AsyncConnection, not a psycopg\.Connection"):
                outbox.add_many(wrong, [placed(1)])
            wrong = conn
            with pytest.raises(UsageError, match=r"not a psycopg\.AsyncConnection"):
                await outbox.add_many_async(wrong, [placed(1)])

    asyncio.run(mixed_up())


def test_a_savepoint_takes_its_events_with_it(conn: psycopg.Connection) -> None:
    outbox.add_many(conn, [placed(1, {})])
    with conn.transaction(force_rollback=True):
        outbox.add_many(conn, [placed(2, {})])
    conn.commit()
    assert [row["aggregate_id"] for row in rows(conn)] == ["1"]


def test_the_connections_own_cursor_and_row_factories_do_not_matter(
    conn: psycopg.Connection, database: Database
) -> None:
    """A RawCursor knows no %(name)s, a ClientCursor cannot send binary arrays."""
    for factory in (psycopg.RawCursor, psycopg.ClientCursor):
        with psycopg.connect(database.conninfo, cursor_factory=factory) as other:
            outbox.add_many(other, [placed(1, {}), placed(2, None)])
    assert len(rows(conn)) == 4


def test_json_settings_of_the_application_do_not_matter(conn: psycopg.Connection) -> None:
    set_json_dumps(lambda value: json.dumps({"wrapped": value}), conn)
    outbox.add_many(conn, [placed(1, {"n": 1})])
    outbox.add(conn, aggregate_type="order", aggregate_id="1", event_type="OrderPlaced", payload={"n": 2})
    assert [row["payload"] for row in rows(conn)] == [{"n": 1}, {"n": 2}]


def test_statement_with_dollar_parameters(conn: psycopg.Connection) -> None:
    event = placed(1, {"n": 1})
    psycopg.RawCursor(conn).execute(*outbox.statement(event, "numeric_dollar"))
    assert [(row["id"], row["payload"]) for row in rows(conn)] == [(event.id, {"n": 1})]


def test_async_connections(conn: psycopg.Connection, database: Database) -> None:
    async def write() -> list[UUID]:
        async with await psycopg.AsyncConnection.connect(database.conninfo) as other:
            await other.execute("INSERT INTO orders VALUES (1)")
            first = await outbox.add_async(
                other, aggregate_type="order", aggregate_id="1", event_type="OrderPlaced", payload={"n": 1}
            )
            rest = await outbox.add_many_async(other, [placed(n, {"n": n}) for n in range(2, 5)])
            await other.commit()
            await outbox.add_many_async(other, [placed(9, {})])
            await other.rollback()
            return [first, *rest]

    written = asyncio.run(write())
    assert [row["id"] for row in rows(conn)] == written


def test_a_writer_with_insert_alone_can_write(conn: psycopg.Connection, database: Database) -> None:
    """No sequence right, no SELECT: what `apply` grants to a writer is enough."""
    conn.execute("GRANT INSERT ON outbox TO shop_app")
    conn.execute("GRANT USAGE ON SCHEMA public TO shop_app")
    conn.commit()
    password = database.server.environ["OUTBOX_APP_PASSWORD"]
    with psycopg.connect(database.conninfo, user="shop_app", password=password) as writer:
        outbox.add_many(writer, [placed(1, {}), placed(2)])
        outbox.add(writer, aggregate_type="order", aggregate_id="3", event_type="OrderPlaced", payload=None)
    assert len(rows(conn)) == 3


@pytest.mark.parametrize(
    "broken",
    [
        {"aggregate_type": "or/der"},
        {"aggregate_type": ""},
        {"aggregate_type": "."},
        {"aggregate_id": ""},
        {"event_type": ""},
        {"aggregate_type": "x" * 201},
        {"aggregate_id": "x" * 1025},
        {"event_type": "x" * 256},
        {"correlation_id": "x" * 256},
        {"traceparent": "x" * 256},
        {"headers": json.dumps("x" * 20_000)},
        {"payload": json.dumps("x" * 1_000_001)},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_the_table_refuses_from_anybody_what_add_refuses(
    conn: psycopg.Connection, broken: dict[str, str]
) -> None:
    """What `add` refuses, an INSERT by hand of the same row is refused by a CHECK as well."""
    good: dict[str, Any] = {
        "aggregate_type": "order",
        "aggregate_id": "1",
        "event_type": "OrderPlaced",
        "payload": "{}",
        "correlation_id": None,
        "traceparent": None,
        "headers": None,
    }
    bad = {**good, **broken}
    read_back = {
        name: json.loads(value) if name in ("payload", "headers") and value else value
        for name, value in bad.items()
    }
    with pytest.raises(EventError):
        outbox.add(conn, **read_back)
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(
            "INSERT INTO outbox (id, event_version, occurred_at, aggregate_type, aggregate_id, event_type,"
            " payload, correlation_id, traceparent, headers)"
            " VALUES (gen_random_uuid(), 1, now(), %(aggregate_type)s, %(aggregate_id)s, %(event_type)s,"
            " %(payload)s, %(correlation_id)s, %(traceparent)s, %(headers)s)",
            bad,
        )


def test_what_is_not_kept_is_in_the_log_only(conn: psycopg.Connection) -> None:
    outbox.add(
        conn, aggregate_type="order", aggregate_id="1", event_type="OrderPlaced", payload={}, keep=False
    )
    outbox.add_many(conn, [placed(2), placed(3)], keep=False)
    kept = outbox.add_many(conn, [placed(4)])
    assert [row["id"] for row in rows(conn)] == kept


def test_where_a_relay_is_set_up_everything_is_kept(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE public.outbox_relay ()")
    outbox.add_many(conn, [placed(1), placed(2)], keep=False)
    assert len(rows(conn)) == 2


def test_not_keeping_works_on_an_asynchronous_connection(
    conn: psycopg.Connection, database: Database
) -> None:
    conn.commit()

    async def write() -> None:
        async with await psycopg.AsyncConnection.connect(database.conninfo) as other:
            await outbox.add_async(
                other, aggregate_type="order", aggregate_id="1", event_type="Gone", payload=None, keep=False
            )
            await outbox.add_many_async(other, [placed(2)], keep=False)

    asyncio.run(write())
    assert rows(conn) == []
