"""The relay does not read dead rows again and again, and never overlooks one that commits late.

Sessions of the relay without Kafka. `OUTBOX_TEST_QUEUE_HOURS` and `OUTBOX_TEST_QUEUE_EVENTS` (events an
hour) make the queue in fast motion longer (`make soak`).
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.rows import TupleRow

from fix_relay import NewRelayed, Relayed
from forms import sized
from outbox_connectors.record import Row
from outbox_pipeline import outbox
from outbox_pipeline.relay import dead_letters
from outbox_pipeline.relay.names import relay_names
from outbox_pipeline.relay.read_floor import Horizon, ReadFloors
from outbox_pipeline.relay.session import LAST_POSITION, RelaySession
from outbox_pipeline.relay.settings import Mode
from waiting import until

pytestmark = pytest.mark.stack

HOURS = sized(6, 24)
EVENTS = sized(1000, 20_000)
SHARDS = 2


class Reader:
    """A worker's session that publishes nowhere: what it read counts as published."""

    def __init__(self, relayed: Relayed) -> None:
        self.session = RelaySession.open(relayed.definition, relay_names(relayed.definition), SHARDS)
        self.published: dict[int, int | None] = {}
        self.last: dict[int, int] = {}
        for shard in range(SHARDS):
            assert self.session.try_shard(shard)
            self.last[shard] = self.session.noted(shard) or 0

    def read(self, limit: int = 1000) -> list[Row]:
        """Clear away the last batches and read the next."""
        found: list[Row] = []
        self.session.notified()
        for shard in range(SHARDS):
            n = self.last[shard] + 1
            rows = self.session.next_rows(
                shard, n, limit, published=self.published.get(shard), unwritable=(), mode=Mode.DELETE
            )
            self.published[shard] = n if rows else None
            self.last[shard] += bool(rows)
            found += rows
        return found

    def lift(self) -> None:
        self.session.raise_read_floors(range(SHARDS), time.monotonic())

    def floor(self) -> int:
        return max(self.session._floors.of(shard) for shard in range(SHARDS))


@pytest.fixture
def relayed(new_relayed: NewRelayed) -> Relayed:
    return new_relayed(SHARDS)


@pytest.fixture
def reader(relayed: Relayed) -> Iterator[Reader]:
    made = Reader(relayed)
    with closing(made.session):
        yield made


def add(conn: psycopg.Connection[TupleRow], relayed: Relayed, count: int = 1) -> None:
    with conn.cursor():
        outbox.add_many(
            conn, relayed.events(f"k{number % 7}" for number in range(count)), allow_autocommit=True
        )


def numbers(rows: list[Row]) -> set[str]:
    return {row.id for row in rows}


def test_a_floor_waits_for_whoever_has_a_lower_position(relayed: Relayed, reader: Reader) -> None:
    with relayed.connect() as conn, psycopg.connect(relayed.site.database.conninfo) as late:
        add(late, relayed)
        late_one = set(relayed.written)
        add(conn, relayed, 100)
        assert len(reader.read()) == 100
        for _ in range(3):
            reader.read()
            reader.lift()
        assert reader.floor() == 0
        late.commit()
        assert numbers(reader.read()) == late_one
        reader.read()
        reader.lift()
        reader.lift()
        assert reader.floor() == 102


def test_no_row_is_overlooked_whoever_commits_when(relayed: Relayed, reader: Reader) -> None:
    """Writers open, write, commit, roll back and prepare in random order; the floors rise meanwhile."""
    seed = int(os.environ.get("OUTBOX_SEED", random.randrange(2**32)))
    print(f"OUTBOX_SEED={seed} repeats it")
    rng = random.Random(seed)
    lifted, seen = 0, set[str]()
    with ExitStack() as stack:
        writers = [stack.enter_context(psycopg.connect(relayed.site.database.conninfo)) for _ in range(5)]
        open_rows: list[list[str]] = [[] for _ in writers]
        for _ in range(600):
            at = rng.randrange(len(writers))
            conn, mine = writers[at], open_rows[at]
            action = rng.random()
            if action < 0.5:
                event = relayed.events([f"k{rng.randrange(9)}"])[0]
                outbox.add_many(conn, [event])
                mine.append(str(event.id))
            elif action < 0.7:
                conn.commit()
                mine.clear()
            elif action < 0.75:
                conn.rollback()
                for event_id in mine:
                    del relayed.written[event_id]
                mine.clear()
            elif action < 0.9:
                found = numbers(reader.read(rng.choice((1, 5, 100))))
                assert not found & seen
                seen |= found
            else:
                before = reader.floor()
                reader.lift()
                lifted += reader.floor() > before
        for conn in writers:
            conn.commit()
        while found := numbers(reader.read()):
            assert not found & seen
            seen |= found
    assert seen == relayed.written.keys()
    assert lifted > 0


def test_a_dead_letter_that_comes_back_is_below_the_floor(relayed: Relayed, reader: Reader) -> None:
    with relayed.connect() as conn:
        add(conn, relayed, 50)
        first, *_ = reader.read()
        reader.session.add_dead_letter(first, "a test", attempts=1, blocks=False)
        for _ in range(3):
            reader.read()
            reader.lift()
        assert reader.floor() == 51
        assert dead_letters.requeue(conn, relayed.definition, [first.id]) == 1
        # The notification that the floor is to be forgotten reaches the session a moment after that commit.
        assert numbers(until(reader.read, "the dead letter is read")) == {first.id}


@pytest.fixture
def blocks(relayed: Relayed, reader: Reader) -> Callable[[bool], int]:
    """Count the blocks that the question for waiting rows touches, with the floors or from the beginning."""

    def touched(with_floors: bool) -> int:
        session = reader.session
        query = session._statement("relay_waiting")
        floors = [session._floors.of(shard) if with_floors else 0 for shard in range(SHARDS)]
        values: Mapping[str, Any] = {
            "shards": list(range(SHARDS)),
            "floors": floors,
            "unwritable": [],
            "until": LAST_POSITION,
        }
        explain: LiteralString = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
        row = session.conn.execute(psycopg.sql.SQL(explain) + query, values).fetchone()
        assert row is not None
        plan = (row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]
        return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])

    return touched


def test_a_queue_in_fast_motion_with_a_forgotten_snapshot(
    relayed: Relayed, reader: Reader, blocks: Callable[[bool], int]
) -> None:
    """Hours of events; in the middle somebody looks at the table and does not end the transaction."""
    sizes: list[int] = []
    with relayed.connect() as conn, psycopg.connect(relayed.site.database.conninfo) as forgotten:
        # The vacuum below comes once an hour; another one in the middle would make that hour's table smaller.
        conn.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")
        for hour in range(HOURS):
            if hour == HOURS // 2:
                forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                forgotten.execute("SELECT count(*) FROM outbox")
            if hour == HOURS // 2 + 2:
                assert blocks(False) > 10 * blocks(True)  # what it is good for
                forgotten.rollback()
            touched = []
            for _ in range(EVENTS // 100):
                add(conn, relayed, 100)
                assert len(reader.read()) == 100
                reader.lift()
                touched.append(blocks(True))
            conn.execute("VACUUM outbox, outbox_relay_batch")  # as the server does by itself
            row = conn.execute("SELECT pg_table_size('outbox'), pg_indexes_size('outbox')").fetchone()
            assert row is not None
            print(
                f"hour {hour}: table {row[0]:,} B, indexes {row[1]:,} B, at most {max(touched)} blocks a look"
            )
            sizes.append(row[0])
            assert max(touched) < 100
        assert max(sizes[: HOURS // 2]) <= 2 * sizes[0]  # no hour leaves anything
        assert reader.read() == []
        conn.execute("VACUUM outbox")
        row = conn.execute("SELECT pg_table_size('outbox')").fetchone()
    assert row is not None
    assert row[0] <= max(sizes[: HOURS // 2])  # and it recovers by itself


def test_a_sequence_that_hands_out_blocks_has_no_floor() -> None:
    floors = ReadFloors()
    for at in range(3):
        assert floors.settled(Horizon(None, frozenset()), 1000.0 + at) is None


def test_floors_are_forgotten_now_and_then() -> None:
    floors = ReadFloors()
    assert floors.settled(Horizon(10, frozenset({"3/1"})), 100.0) is None
    assert floors.settled(Horizon(12, frozenset({"3/1"})), 101.0) is None
    assert floors.settled(Horizon(14, frozenset({"3/2"})), 102.0) == 10
    floors.raise_to({0: 11})
    assert floors.settled(Horizon(20, frozenset()), 103.0) == 14
    assert floors.of(0) == 11
    assert floors.settled(Horizon(21, frozenset()), 161.0) is None
    assert floors.of(0) == 0
