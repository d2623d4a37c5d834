"""Byte for byte: the relay makes of a row the record that Debezium's EventRouter makes of it.

`test_wire` holds Debezium to `record.row_record`; here the relay is held to the same, with the same
rows. Together: both roads write equal records.
"""

from __future__ import annotations

import os
import random
import time
from typing import LiteralString

import pytest

from conformance.roads import Arrived, _arrived
from conformance.rows import AGGREGATE_TYPES, largest, rows
from conformance.test_wire import by_id, insert, stored
from fix_relay import NewRelayed, Relayed
from outbox_connectors.record import HEADERS, Row, partition_of, row_record

pytestmark = [pytest.mark.stack, pytest.mark.slow]

COUNT = 3000


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("OUTBOX_TEST_SEED", time.time_ns()))
    print(f"OUTBOX_TEST_SEED={seed} makes the same rows again")
    return random.Random(seed)


def carried(relayed: Relayed, made: list[Row], payload: LiteralString) -> tuple[list[Row], list[Arrived]]:
    """Insert rows, read them back, relay them, and read the records."""
    with relayed.connect() as conn:
        insert(conn, made, "bytea" if payload == "payload" else "jsonb")
        expected = stored(conn, payload)
    counters = relayed.until_empty("--workers", "2")
    assert counters["published"] == len(made)
    return expected, [_arrived(message) for message in relayed.read()]


def compare(relayed: Relayed, expected: list[Row], arrived: list[Arrived]) -> None:
    kafka = relayed.definition.kafka
    found = by_id(arrived)
    assert found.keys() == {row.id.encode() for row in expected}
    order: dict[tuple[str, str], list[int]] = {}
    for row in expected:
        one = found[row.id.encode()]
        assert one.record == row_record(row, kafka.topic_of(row.aggregate_type))
        assert one.partition == partition_of(one.record.key, kafka.defaults.partitions)
        assert tuple(name for name, _ in one.record.headers) == HEADERS
        order.setdefault((row.aggregate_type, row.aggregate_id), []).append(one.offset)
    assert all(offsets == sorted(offsets) for offsets in order.values())


def test_jsonb_rows(relayed: Relayed, rng: random.Random) -> None:
    made = [*rows(rng, COUNT - 1, binary=False), largest(rng, binary=False)]
    expected, arrived = carried(relayed, made, "payload::text")
    compare(relayed, expected, arrived)
    assert len({one.record.topic for one in arrived}) == len(AGGREGATE_TYPES)
    assert any(one.record.value is None for one in arrived)


def test_bytea_rows_of_a_partitioned_outbox(new_relayed: NewRelayed, rng: random.Random) -> None:
    relayed = new_relayed(outbox={"payload": "bytea", "partition": "daily"})
    made = [*rows(rng, COUNT - 1, binary=True), largest(rng, binary=True)]
    expected, arrived = carried(relayed, made, "payload")
    compare(relayed, expected, arrived)
