"""Byte for byte: the same rows, once through Debezium's EventRouter and once through the relay.

Values are drawn by hypothesis beside the special ones of `rows`; the seed is printed and
`OUTBOX_SEED` makes the same rows again. Both roads are also held to `record.row_record`.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, LiteralString

import psycopg
import pytest
from psycopg.rows import TupleRow

from conformance import strategies
from conformance.roads import Arrived, Road, _arrived, road
from conformance.rows import AGGREGATE_TYPES, json_text, largest, rows
from fix_relay import NewRelayed, Relayed
from fix_stack import Database, Stack
from outbox_connectors.definition import Kafka
from outbox_connectors.event import jsonb_text
from outbox_connectors.record import HEADERS, Row, partition_of, row_record
from outbox_pipeline import outbox
from waiting import until

pytestmark = [pytest.mark.stack, pytest.mark.slow]

PARTITIONS = {"defaults": {"partitions": 6}}  # as many as a definition has that says nothing
SPECIAL = 329
DRAWN = 2500
COUNT = SPECIAL + DRAWN + 1
TYPES = ["uuid", "text", "text", "text", "int4", "PAYLOAD", "timestamptz", "text", "text", "text", "jsonb"]


@pytest.fixture
def from_seed() -> int:
    seed = int(os.environ.get("OUTBOX_SEED", time.time_ns()))
    print(f"OUTBOX_SEED={seed} makes the same rows again")
    return seed


def insert(conn: psycopg.Connection[TupleRow], made: Sequence[Row], payload: str) -> None:
    values = ", ".join(f"%s::{payload if name == 'PAYLOAD' else name}" for name in TYPES)
    statement = f"INSERT INTO public.outbox ({', '.join(Row._fields)}) VALUES ({values})"  # noqa: S608
    with conn.transaction(), conn.cursor() as cursor:
        cursor.executemany(statement.encode(), made)


STORED: Final[LiteralString] = """
    SELECT id::text, aggregate_type, aggregate_id, event_type, event_version::text, payload,
           occurred_at::text, traceparent, correlation_id, causation_id, headers::text
    FROM public.outbox
    ORDER BY position
"""


def stored(conn: psycopg.Connection[TupleRow], payload: LiteralString) -> list[Row]:
    """Read the rows back the way the relay does: as text that PostgreSQL prints in UTC."""
    conn.execute("SET TimeZone = 'UTC'")
    conn.execute("SET DateStyle = 'ISO'")
    return [Row(*found) for found in conn.execute(STORED.replace("payload", payload))]


def by_id(arrived: Sequence[Arrived]) -> dict[bytes | None, Arrived]:
    found = {one.record.headers[0][1]: one for one in arrived}
    assert len(found) == len(arrived), "an id came twice"
    return found


def rows_of(seed: int, *, binary: bool) -> list[Row]:
    rng = random.Random(seed)
    made = [*rows(rng, SPECIAL, binary=binary), *strategies.rows(DRAWN, seed, binary=binary)]
    return [*made, largest(rng, binary=binary)]


def relay(relayed: Relayed, made: Sequence[Row], payload: LiteralString) -> tuple[list[Row], list[Arrived]]:
    """Insert rows, read them back, relay them, and read the records."""
    with relayed.connect() as conn:
        insert(conn, made, "bytea" if payload == "payload" else "jsonb")
        expected = stored(conn, payload)
    counters = relayed.until_empty("--workers", "2")
    assert counters["published"] == len(made)
    return expected, [_arrived(message) for message in relayed.read()]


def check(kafka: Kafka, expected: Sequence[Row], arrived: Sequence[Arrived]) -> None:
    """Hold the records of a road to what the rows say."""
    found = by_id(arrived)
    assert found.keys() == {row.id.encode() for row in expected}
    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in expected:
        one = found[row.id.encode()]
        assert one.record == row_record(row, kafka.topic_of(row.aggregate_type)), row
        assert one.partition == partition_of(one.record.key, kafka.defaults.partitions)
        assert tuple(name for name, _ in one.record.headers) == HEADERS
        order[row.aggregate_type, row.aggregate_id].append(one.offset)
    assert all(offsets == sorted(offsets) for offsets in order.values()), "an aggregate's order was broken"
    assert {one.record.topic for one in arrived} == {kafka.topic_of(name) for name in AGGREGATE_TYPES}
    assert any(one.record.value is None for one in arrived)


def compare(debezium: Sequence[Arrived], relayed: Sequence[Arrived]) -> None:
    """Hold the roads to each other: all that is not the topic's prefix or an offset."""
    others = by_id(relayed)
    assert len(debezium) == len(relayed) == COUNT
    for one in debezium:
        other = others[one.record.headers[0][1]]
        assert replace(one.record, topic="") == replace(other.record, topic="")
        assert one.partition == other.partition


def add_without_keeping(conn: psycopg.Connection[TupleRow]) -> Row:
    """Write an event whose row never stays; only the log has it."""
    with conn.transaction():
        event_id = outbox.add(
            conn,
            aggregate_type=AGGREGATE_TYPES[0],
            aggregate_id="gone",
            event_type="Gone",
            payload={"a": 1.50},
            occurred_at=datetime(2026, 11, 30, 1, 2, 3, tzinfo=UTC),
            keep=False,
        )
    moment = "2026-11-30 01:02:03+00"
    return Row(
        str(event_id), AGGREGATE_TYPES[0], "gone", "Gone", "1", '{"a": 1.5}', moment, None, None, None, None
    )


def test_jsonb_rows(
    new_relayed: NewRelayed,  # in front, so that its roles go after all databases
    stack: Stack,
    new_database: Callable[[Stack], Database],
    pipeline_name: str,
    from_seed: int,
) -> None:
    made = rows_of(from_seed, binary=False)
    relayed = new_relayed(kafka=PARTITIONS)
    expected, by_relay = relay(relayed, made, "payload::text")
    check(relayed.definition.kafka, expected, by_relay)
    with road(stack, new_database(stack), pipeline_name) as other:
        insert(other.conn, made, "jsonb")
        assert stored(other.conn, "payload::text") == expected
        gone = add_without_keeping(other.conn)
        *by_debezium, last = sorted(
            other.read(COUNT + 1), key=lambda one: one.record.headers[0][1] == gone.id.encode()
        )
        check(other.definition.kafka, expected, by_debezium)
        assert last.record == row_record(gone, other.definition.kafka.topic_of(gone.aggregate_type))
        assert len(stored(other.conn, "payload::text")) == COUNT
    compare(by_debezium, by_relay)


def test_bytea_rows_of_a_partitioned_outbox_with_heartbeats(
    new_relayed: NewRelayed,  # in front, so that its roles go after all databases
    stack: Stack,
    new_database: Callable[[Stack], Database],
    pipeline_name: str,
    from_seed: int,
) -> None:
    made = rows_of(from_seed, binary=True)
    relayed = new_relayed(outbox={"payload": "bytea", "partition": "daily"}, kafka=PARTITIONS)
    expected, by_relay = relay(relayed, made, "payload")
    check(relayed.definition.kafka, expected, by_relay)
    extra = "outbox: {payload: bytea, partition: daily}\nwatch: {ticker: off}\n"
    quick = "  config: {heartbeat.interval.ms: 1000}\n"  # 10 s in the profile, which would be a long test
    with road(stack, new_database(stack), pipeline_name, quick + extra) as other:
        insert(other.conn, made, "bytea")
        assert stored(other.conn, "payload") == expected
        by_debezium = other.read(COUNT)
        check(other.definition.kafka, expected, by_debezium)
        other.conn.execute("CREATE TABLE public.unrelated AS SELECT generate_series(1, 1000)")
        position = other.conn.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert position is not None
        slot_passes(other, position[0])
    compare(by_debezium, by_relay)


def slot_passes(made: Road, lsn: str) -> None:
    """Wait until the slot has moved past a position that no captured row has, by heartbeats alone."""
    query = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    values = (lsn, made.definition.postgres.slot)
    until(lambda: made.conn.execute(query, values).fetchone() == (True,), "a move of the slot")


def test_jsonb_text_prints_what_postgresql_prints(database: Database, from_seed: int) -> None:
    rng = random.Random(from_seed)
    texts = [json_text(rng) for _ in range(3000)] + list(strategies.drawn(strategies.JSON, 500, from_seed))
    with database.connect() as conn:
        query = "SELECT t, t::jsonb::text FROM unnest(%s::text[]) AS t"
        for text, printed in conn.execute(query, (texts,)):
            assert jsonb_text(text) == printed
