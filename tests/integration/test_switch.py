"""A live outbox goes from the connector to the relay and back, under load, without gap or overlap.

Here once there and once back, the switch interrupted behind every step. `make soak` goes there and back
three times at 500 events a second, with real processes and kill -9: of the switch at every step, of the
relay, and of Kafka Connect.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from fix_provision import PROGRAM, Pipeline
from fix_stack import Database
from forms import LONG, sized
from outbox_connectors.definition import TableName
from outbox_connectors.errors import ExitCode
from outbox_pipeline import outbox, relay
from outbox_pipeline.errors import OutboxError, Refused
from outbox_pipeline.operations import audit, switch
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.wakeup import Waiter
from switch_victim import POINTS, interrupt
from waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(3600)]

KEYS = 23
ROUNDS = sized(1, 3)
RATE = sized(200, 500)
KILLS = LONG
TESTS = Path(__file__).parents[1]


class Writer(threading.Thread):
    """Commits numbered events of some aggregates until it is told to stop, at most `RATE` a second."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.stop = threading.Event()
        self.numbers: Counter[str] = Counter()
        self.written = 0
        self._database = database

    def run(self) -> None:
        with psycopg.connect(self._database.conninfo) as conn:
            began = time.monotonic()
            while not self.stop.is_set():
                events = []
                for _ in range(5):
                    key = f"k{self.written % KEYS}"
                    self.numbers[key] += 1
                    self.written += 1
                    events.append(
                        outbox.event(
                            aggregate_type="order",
                            aggregate_id=key,
                            event_type="Counted",
                            payload={"n": self.numbers[key]},
                        )
                    )
                outbox.add_many(conn, events)
                conn.commit()
                self.stop.wait(max(0.0, self.written / RATE - (time.monotonic() - began)))

    def await_more(self, count: int = 20) -> None:
        """Wait until so many events more are written."""
        goal = self.written + count
        until(lambda: self.written >= goal, "the writer goes on")


class Site:
    """A pipeline with its writer and a consumer that keeps a ledger."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.definition = pipeline.site.definition
        self.database = pipeline.site.database
        self.writer = Writer(self.database)
        with self.database.connect() as conn:
            conn.execute(
                "CREATE TABLE effect (seq bigint GENERATED ALWAYS AS IDENTITY,"
                " event_id uuid NOT NULL, aggregate_id text NOT NULL, n int NOT NULL)"
            )

    @contextlib.contextmanager
    def consuming(self) -> Iterator[None]:
        """Run the consumer's process."""
        made = self.pipeline.run("inbox", "init", "--dsn", self.database.conninfo)
        assert made.code == 0, made.err
        env = {
            "LEDGER_DSN": self.database.conninfo,
            "LEDGER_GROUP": self.definition.pipeline,
            "LEDGER_TOPIC": self.definition.kafka.topic_of("order"),
            "OUTBOX_KAFKA_BOOTSTRAP": self.definition.kafka.client["bootstrap.servers"],
            "PYTHONPATH": str(TESTS / "acceptance"),
        }
        process = subprocess.Popen([PROGRAM, "consume", "ledger_app:app"], env={**os.environ, **env})
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def effects(self) -> list[tuple[str, str, int]]:
        with self.database.connect() as conn:
            rows = conn.execute("SELECT event_id::text, aggregate_id, n FROM effect ORDER BY seq")
            return [(row[0], row[1], row[2]) for row in rows]

    def switch(self, road: str) -> None:
        """Switch in this process."""
        move = switch.to_relay if road == "relay" else switch.to_cdc
        with self.pipeline.site.admin() as conn, self.pipeline.client() as client:
            move(conn, client, self.definition, say=print)

    def interrupted(self, road: str, point: str) -> None:
        """Switch as far as a point that may not be reached, and leave everything there."""
        if not KILLS:
            with interrupt(road, point, _interrupt), contextlib.suppress(Interruption):
                self.switch(road)
            return
        file = self.pipeline.folder / "switch.yaml"
        file.write_text(json.dumps(self.pipeline.site.document), "utf-8")
        victim = subprocess.run(
            [sys.executable, TESTS / "switch_victim.py", file, road, point], timeout=PATIENCE_SECONDS
        )
        print(f"switch to {road}, behind '{point}': exit {victim.returncode}")
        assert victim.returncode in (0, -signal.SIGKILL)  # 0: an earlier one had come past the point

    def completed(self, road: str) -> None:
        """Switch; what is dead comes back meanwhile, so this may take more than one try."""
        if not KILLS:
            self.switch(road)
            return

        def done() -> bool:
            answer = self.pipeline.run("--json", "switch", "--to", road)
            print(answer.out, answer.err)
            return answer.code == 0

        until(done, f"the switch to {road}", pause_seconds=1)


class Interruption(Exception):
    """What ends a switch in its middle."""


def _interrupt() -> None:
    raise Interruption


@contextlib.contextmanager
def relaying(site: Site) -> Iterator[None]:
    """Relay as a fleet would that starts again whatever happens."""
    stop, waiter = threading.Event(), Waiter()
    settings = relay.RelaySettings(mode=relay.Mode.ARCHIVE)

    def work() -> None:
        while not stop.is_set():
            try:
                relay.run(site.definition, settings, say=print, stop=stop, waiter=waiter)
            except Refused as refused:  # the connector is live again, or about to be
                print(refused)
                return
            except OutboxError as error:
                print(error)

    thread = threading.Thread(target=_killed_relay if KILLS else work, args=(site, stop) if KILLS else ())
    thread.start()
    try:
        yield
    finally:
        stop.set()
        waiter.wake()
        thread.join()


def _killed_relay(site: Site, stop: threading.Event) -> None:
    """Run relays as processes and kill them at random."""
    chance = random.Random(20261130)
    while not stop.is_set():
        with site.pipeline.start("relay", "--mode", "archive", "--workers", "2") as process:
            stop.wait(chance.uniform(3, 8))
            process.kill()
            process.communicate()


def _kill_connect(site: Site) -> None:
    """Kill Kafka Connect in the middle of the next switch, and start it again."""
    if not KILLS:
        return
    server = site.database.server
    server.kill("connect")
    server.start("connect")


def there_and_back(site: Site) -> None:
    take(site, "relay")
    with relaying(site):
        take(site, "cdc")


def take(site: Site, road: str) -> None:
    """Switch to a road: interrupted at every point, then to the end while Connect is killed."""
    for point in POINTS[road]:
        site.writer.await_more()
        site.interrupted(road, point)
    killer = threading.Thread(target=_kill_connect, args=(site,))
    killer.start()
    site.completed(road)
    killer.join()


def check(site: Site) -> None:
    def applied() -> bool:
        return len(site.effects()) >= site.writer.written

    until(applied, "every event is applied", pause_seconds=0.5)
    with site.pipeline.site.admin() as conn, site.database.connect() as far:
        inbox = audit.InboxTable(far, TableName("public", "inbox"))
        books = audit.audit(conn, site.definition, inbox=inbox, settle_seconds=PATIENCE_SECONDS)
    effects = site.effects()
    order: dict[str, list[int]] = defaultdict(list)
    for _, key, n in effects:
        order[key].append(n)
    broken = sum(a >= b for found in order.values() for a, b in pairwise(found))
    doubled = len(effects) - len({event_id for event_id, _, _ in effects})
    print(
        f"written {site.writer.written:,}  audit: delivered {books.delivered:,}  applied {books.applied:,}  "
        f"missing {books.missing}  unapplied {books.unapplied}  duplicated {books.duplicated}  "
        f"unexpected {books.unexpected}  ledger: effects {len(effects):,}  duplicated {doubled}  "
        f"out of order {broken}"
    )
    assert (books.written, books.missing, books.unapplied, books.unexpected) == (site.writer.written, 0, 0, 0)
    assert doubled == 0
    assert broken == 0
    if not KILLS:  # a killed Connect sends again what it had not confirmed; the inbox drops that
        assert books.duplicated == 0


def test_there_and_back_under_load(own_pipeline: Pipeline) -> None:
    applied = own_pipeline.run("apply", "--no-wait")
    assert applied.code == 0, applied.err
    site = Site(own_pipeline)
    with own_pipeline.site.admin() as conn:
        schema.init(conn, site.definition, schema.SetUpOptions(4, archive=True), say=print)
    with site.consuming():
        site.writer.start()
        try:
            for number in range(ROUNDS):
                print(f"== round {number + 1}")
                there_and_back(site)
        finally:
            site.writer.stop.set()
            site.writer.join()
        check(site)


def test_a_slot_dropped_by_hand(own_pipeline: Pipeline) -> None:
    """The connector has published rows that are still there: no relay repeats them, a switch mends it."""
    pipeline = own_pipeline
    assert pipeline.run("apply", "--no-wait").code == 0
    with pipeline.site.admin() as conn:
        schema.init(conn, pipeline.site.definition, schema.SetUpOptions(2, archive=True), say=print)
    stayed = pipeline.run("switch", "--to", "cdc")
    assert (stayed.code, stayed.out) == (0, "the outbox is the connector's\n"), stayed.err
    pipeline.run("send", "order", "1", "Placed", "{}")
    with pipeline.site.admin() as conn:
        assert audit.audit(conn, pipeline.site.definition, settle_seconds=PATIENCE_SECONDS).missing == 0
    with pipeline.client() as client:
        client.stop(pipeline.site.definition.connect.connector)
        idle = "SELECT 1 FROM pg_replication_slots WHERE slot_name = {slot} AND NOT active"
        until(lambda: pipeline.sql(idle), "the task lets go of its slot")
        pipeline.sql("SELECT pg_drop_replication_slot({slot})")
    pipeline.run("send", "order", "1", "Paid", "{}")
    refused = pipeline.run("relay", "--until-empty", "--mode", "archive")
    assert (refused.code, "switch --to relay" in refused.err) == (ExitCode.REFUSED, True), refused.err
    switched = pipeline.run("--json", "switch", "--to", "relay")
    assert switched.document() == {"road": "relay", "rows": 1}
    relayed = pipeline.run("--json", "relay", "--until-empty", "--mode", "archive")
    assert relayed.document()["published"] == 1
    books = pipeline.run("--json", "audit").document()
    assert (books["written"], books["missing_count"], books["duplicated"]) == (2, 0, 0)
    assert pipeline.run("apply", "--no-wait").code == ExitCode.REFUSED
