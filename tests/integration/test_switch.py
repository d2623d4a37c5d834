"""A live outbox goes from the connector to the relay and back, under load, without gap or overlap."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from unittest import mock

import psycopg
import pytest

from conformance.roads import Road, road
from fix_stack import Database, Stack
from outbox_connectors.definition import Definition, Secret
from outbox_pipeline import audit, outbox, postgres, relay, switch
from outbox_pipeline.errors import Refused
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.wakeup import Waiter

pytestmark = [pytest.mark.stack, pytest.mark.slow]

KEYS = 23
# Where each of the three rounds is interrupted, on the way there and on the way back.
STEPS = (("", ""), ("_sweep", "_set_fence"), ("_stop_connector", "_start_connector"))


class Writer(threading.Thread):
    """Writes numbered events of some aggregates until it is told to stop."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.numbers: Counter[str] = Counter()
        self.written: dict[bytes, tuple[str, int]] = {}
        self._database = database

    def run(self) -> None:
        with psycopg.connect(self._database.conninfo) as conn:
            at = 0
            while not self.stop.is_set():
                events = []
                for _ in range(5):
                    at += 1
                    key = f"k{at % KEYS}"
                    self.numbers[key] += 1
                    events.append(
                        outbox.event(
                            aggregate_type="order",
                            aggregate_id=key,
                            event_type="Counted",
                            payload={"number": self.numbers[key]},
                        )
                    )
                    self.written[str(events[-1].id).encode()] = (key, self.numbers[key])
                outbox.add_many(conn, events)
                conn.commit()
                time.sleep(0.01)


@contextlib.contextmanager
def relaying(definition: Definition) -> Iterator[None]:
    """Relay in threads, as a fleet would that starts again whatever happens."""
    stop, waiter = threading.Event(), Waiter()

    def work() -> None:
        with contextlib.suppress(Refused):  # the connector is live again
            relay.run(
                definition, relay.Settings(mode=relay.Mode.ARCHIVE), say=print, stop=stop, waiter=waiter
            )

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    waiter.wake()
    thread.join(60)
    assert not thread.is_alive()


class Interruption(Exception):
    """What ends a switch in its middle."""


def interrupted(move: Callable[..., object], made: Road, step: str) -> None:
    """Switch; with a step, first as far as that step has just been done, then again."""
    if step:
        done = getattr(switch, step)

        def and_end(*args: object, **kwargs: object) -> None:
            done(*args, **kwargs)
            raise Interruption

        with mock.patch.object(switch, step, and_end), pytest.raises(Interruption):
            move(made.conn, made.client, made.definition, say=print)
    move(made.conn, made.client, made.definition, say=print)


def check(made: Road, writer: Writer) -> None:
    arrived = made.read(len(writer.written))
    seen = Counter(one.record.headers[0][1] for one in arrived)
    order: dict[str, list[int]] = defaultdict(list)
    for one in arrived:
        key, number = writer.written[one.record.headers[0][1] or b""]
        order[key].append(number)
    broken = sum(a >= b for found in order.values() for a, b in pairwise(found))
    print(
        f"written {len(writer.written)}  different {len(seen)}  records {len(arrived)}  out of order {broken}"
    )
    assert seen.keys() == writer.written.keys()
    assert max(seen.values()) == 1
    assert broken == 0


def test_there_and_back_under_load(
    stack: Stack, new_database: Callable[[Stack], Database], pipeline_name: str
) -> None:
    database = new_database(stack)
    with (
        road(stack, database, pipeline_name) as made,
        mock.patch.dict("os.environ", {**stack.environ, "PGDATABASE": database.name}),
    ):
        definition = made.definition
        schema.init(made.conn, definition, schema.Wishes(4, archive=True), say=print)
        writer = Writer(database)
        writer.start()
        try:
            for step in STEPS:
                time.sleep(1)
                interrupted(switch.to_relay, made, step[0])
                with relaying(definition):
                    time.sleep(2)
                    interrupted(switch.to_cdc, made, step[1])
        finally:
            writer.stop.set()
            writer.join()
        with postgres.connect(Secret(database.conninfo), application_name="test") as conn:
            books = audit.audit(conn, definition, settle_seconds=60)
        print(books.document())
        assert books.missing == 0
        assert books.duplicated == 0
        assert books.unexpected == 0
        check(made, writer)
