"""Kill -9 of every part, at random, under load: nothing is missing, nothing happens twice, order holds.

The run is seeded; `OUTBOX_SEED` repeats one; `make soak` runs it for ten minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from forms import SEED, sized
from outbox_pipeline import outbox
from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
OUTBOXCTL = str(Path(sys.executable).with_name("outboxctl"))
SECONDS = sized(120.0, 600.0)
RATE = 200
AGGREGATES = 50
VICTIMS = ("connect", "kafka", "postgres", "consumer")

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(SECONDS + 400)]


def outboxctl(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [OUTBOXCTL, "-f", "connectors/outbox.yaml", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


@dataclass(slots=True)
class Process:
    """A long-running child that can be killed and started again."""

    arguments: tuple[str, ...]
    env: dict[str, str]
    log: Path
    _child: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        command = [OUTBOXCTL, "-f", "connectors/outbox.yaml", *self.arguments]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    def stop(self) -> int:
        assert self._child is not None
        self._child.terminate()
        return self._child.wait(timeout=PATIENCE_SECONDS)


@dataclass(slots=True)
class Writer:
    """Commits `RATE` events a second, whatever happens to the server, until told to stop."""

    dsn: str
    stopped: threading.Event = field(default_factory=threading.Event)
    attempts: int = 0

    def run(self) -> None:
        while not self.stopped.is_set():
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self.dsn, connect_timeout=3) as conn,
            ):
                self._write(conn)
            self.stopped.wait(0.2)

    def _write(self, conn: psycopg.Connection) -> None:
        started, first = time.monotonic(), self.attempts
        while not self.stopped.is_set():
            self.attempts += 1
            with conn.transaction():
                outbox.add(
                    conn,
                    aggregate_type="count",
                    aggregate_id=f"c{self.attempts % AGGREGATES}",
                    event_type="Counted",
                    payload={"n": self.attempts},
                )
            ahead = (self.attempts - first) / RATE - (time.monotonic() - started)
            if ahead > 0:
                self.stopped.wait(ahead)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ids in the two tables at the ends of the road."""

    written: frozenset[str]
    effects: tuple[tuple[str, str, int], ...]

    @property
    def missing(self) -> set[str]:
        return set(self.written) - {event_id for event_id, _, _ in self.effects}

    @property
    def duplicated(self) -> int:
        return len(self.effects) - len({event_id for event_id, _, _ in self.effects})

    def out_of_order(self) -> list[str]:
        last: dict[str, int] = {}
        late = []
        for event_id, aggregate, n in self.effects:
            if n <= last.get(aggregate, 0):
                late.append(event_id)
            last[aggregate] = n
        return late


def ledger(admin: str) -> Ledger:
    with (
        psycopg.connect(f"{admin} dbname=shop") as shop,
        psycopg.connect(f"{admin} dbname=billing") as billing,
    ):
        written = shop.execute("SELECT id::text FROM outbox WHERE aggregate_type = 'count'").fetchall()
        effects = billing.execute(
            "SELECT event_id::text, aggregate_id, n FROM effect ORDER BY seq"
        ).fetchall()
    return Ledger(frozenset(row[0] for row in written), tuple((row[0], row[1], row[2]) for row in effects))


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(psycopg.OperationalError):
            if condition():
                return True
        time.sleep(0.5)
    return False


class Road:
    """A stack of its own with the whole road on it, from the writer's table to the effects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack("up")
        exports = self.stack("env").splitlines()
        pairs = (line.removeprefix("export ").partition("=") for line in exports if "=" in line)
        self.env = os.environ | {name: value.strip("'\"") for name, _, value in pairs}
        e = self.env
        self.admin = f"host={e['PGHOST']} port={e['PGPORT']} user={e['PGUSER']} password={e['PGPASSWORD']}"
        self.env |= {
            "LEDGER_DSN": f"{self.admin} dbname=billing",
            "LEDGER_TOPIC": "outbox.event.count",
            "PYTHONPATH": str(Path(__file__).parent),
        }
        self.consumer = Process(("consume", "ledger_app:app"), self.env, folder / "consumer.log")
        self.ticker = Process(("watch", "--tick-only"), self.env, folder / "ticker.log")

    def stack(self, *arguments: str) -> str:
        command = ["scripts/stack", "--name", "kills", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        return done.stdout

    def prepare(self) -> None:
        applied = outboxctl(self.env, "apply")
        assert applied.returncode == 0, applied.stderr
        made = outboxctl(self.env, "inbox", "init", "--dsn", self.env["LEDGER_DSN"])
        assert made.returncode == 0, made.stderr
        with psycopg.connect(self.env["LEDGER_DSN"]) as conn:
            conn.execute(
                "CREATE TABLE effect (seq bigint GENERATED ALWAYS AS IDENTITY,"
                " event_id uuid NOT NULL, aggregate_id text NOT NULL, n int NOT NULL)"
            )

    def kill(self, victim: str, pause: float) -> None:
        if victim == "consumer":
            self.consumer.kill()
            time.sleep(pause)
            self.consumer.start()
        else:
            self.stack("kill", victim)
            time.sleep(pause)
            try:
                self.stack("start", victim)
            except AssertionError:  # it waits two minutes, of which a busy machine may need more
                self.stack("start", victim)


@pytest.fixture
def road(tmp_path: Path) -> Iterator[Road]:
    road = Road(tmp_path)
    try:
        road.prepare()
        road.consumer.start()
        road.ticker.start()
        yield road
    finally:
        for process in (road.consumer, road.ticker):
            with contextlib.suppress(AssertionError, OSError):
                process.kill()
        road.stack("reset")


def kill_at_random(road: Road, chance: random.Random, end: float) -> list[str]:
    victims: list[str] = []
    while time.monotonic() < end:
        time.sleep(chance.uniform(1, 6))
        victim = chance.choice(VICTIMS)
        victims.append(victim)
        road.kill(victim, pause=chance.uniform(0, 2))
    return victims


def test_nothing_is_lost_or_doubled_while_everything_is_killed(road: Road) -> None:
    writer = Writer(f"{road.admin} dbname=shop")
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        victims = kill_at_random(road, random.Random(SEED), time.monotonic() + SECONDS)
    finally:
        writer.stopped.set()
        thread.join()
    quiet = time.monotonic()
    arrived = wait_for(lambda: not ledger(road.admin).missing, PATIENCE_SECONDS)
    result = ledger(road.admin)
    print(
        f"seed={SEED} kills={len(victims)} ({', '.join(victims)}) attempts={writer.attempts} "
        f"drained in {time.monotonic() - quiet:.0f} s "
        f"written={len(result.written)} applied={len(result.effects)} "
        f"missing={len(result.missing)} duplicated={result.duplicated}"
    )
    assert arrived, f"{len(result.missing)} events missing, the logs are in {road.folder}"
    assert result.duplicated == 0
    assert result.out_of_order() == []
    assert len(result.written) > SECONDS * RATE / 10, "the writer hardly wrote: the run proves nothing"
    assert road.consumer.stop() == 0
    assert road.ticker.stop() == 0
