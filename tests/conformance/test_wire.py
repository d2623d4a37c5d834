"""Byte for byte: a row of PostgreSQL through Debezium's EventRouter is the record that `record` says."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, LiteralString

import psycopg
import pytest
from psycopg.rows import TupleRow

from conformance.roads import Arrived, Road, road
from conformance.rows import AGGREGATE_TYPES, json_text, largest, rows
from fix_stack import Database, Stack
from outbox_connectors.event import jsonb_text
from outbox_connectors.record import HEADERS, Row, partition_of, row_record

pytestmark = [pytest.mark.stack, pytest.mark.slow]

COUNT = 330
TYPES = ["uuid", "text", "text", "text", "int4", "PAYLOAD", "timestamptz", "text", "text", "text", "jsonb"]


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


def compare(made: Road, expected: Sequence[Row], arrived: Sequence[Arrived]) -> None:
    kafka = made.definition.kafka
    found = by_id(arrived)
    assert found.keys() == {row.id.encode() for row in expected}
    for row in expected:
        one = found[row.id.encode()]
        assert one.record == row_record(row, kafka.topic_of(row.aggregate_type))
        assert one.partition == partition_of(one.record.key, kafka.defaults.partitions)
        assert tuple(name for name, _ in one.record.headers) == HEADERS
    order: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in expected:
        order[row.aggregate_type, row.aggregate_id].append(found[row.id.encode()].offset)
    assert all(offsets == sorted(offsets) for offsets in order.values()), "an aggregate's order was broken"


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("OUTBOX_TEST_SEED", time.time_ns()))
    print(f"OUTBOX_TEST_SEED={seed} makes the same rows again")
    return random.Random(seed)


def test_jsonb_rows_through_the_ticker_profile(
    stack: Stack, new_database: Callable[[Stack], Database], pipeline_name: str, rng: random.Random
) -> None:
    with road(stack, new_database(stack), pipeline_name) as made:
        insert(made.conn, [*rows(rng, COUNT - 1, binary=False), largest(rng, binary=False)], "jsonb")
        expected = stored(made.conn, "payload::text")
        arrived = made.read(COUNT)
        compare(made, expected, arrived)
        assert {one.record.topic for one in arrived} == {
            made.definition.kafka.topic_of(name) for name in AGGREGATE_TYPES
        }
        assert any(one.record.value is None for one in arrived)


def test_bytea_rows_of_a_partitioned_outbox_through_the_heartbeat_profile(
    stack: Stack, new_database: Callable[[Stack], Database], pipeline_name: str, rng: random.Random
) -> None:
    extra = "outbox: {payload: bytea, partition: daily}\nwatch: {ticker: off}\n"
    quick = "  config: {heartbeat.interval.ms: 1000}\n"  # 10 s in the profile, which would be a long test
    with road(stack, new_database(stack), pipeline_name, quick + extra) as made:
        insert(made.conn, [*rows(rng, COUNT - 1, binary=True), largest(rng, binary=True)], "bytea")
        expected = stored(made.conn, "payload")
        compare(made, expected, made.read(COUNT))
        made.conn.execute("CREATE TABLE public.unrelated AS SELECT generate_series(1, 1000)")
        position = made.conn.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert position is not None
        slot_passes(made, position[0])


def slot_passes(made: Road, lsn: str) -> None:
    """Wait until the slot has moved past a position that no captured row has, by heartbeats alone."""
    query = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    deadline = time.monotonic() + 60
    while made.conn.execute(query, (lsn, made.definition.postgres.slot)).fetchone() != (True,):
        assert time.monotonic() < deadline, "the slot did not move"
        time.sleep(0.2)


def test_jsonb_text_prints_what_postgresql_prints(database: Database, rng: random.Random) -> None:
    texts = [json_text(rng) for _ in range(3000)]
    with database.connect() as conn:
        query = "SELECT t, t::jsonb::text FROM unnest(%s::text[]) AS t"
        for text, printed in conn.execute(query, (texts,)):
            assert jsonb_text(text) == printed
