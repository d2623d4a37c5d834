"""Four workers, killed and frozen, servers killed, sessions cut, records refused: every event once, in order.

The short form is for `make test`, the long one (100,000 events, a worker frozen for a minute, every
calamity several times) for `make soak`: the code is the same.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest

from fix_relay import NewRelayed, Relayed
from forms import SEED, sized
from outbox_connectors.errors import ExitCode
from outbox_connectors.record import Event
from outbox_pipeline import outbox
from waiting import PATIENCE_SECONDS, until

EVENTS = sized(5000, 100_000)
RATE = sized(400, 1000)  # events a second, while they last
IDLE_RATE = 50  # once there are enough
ROUNDS = sized(1, 3)
# PostgreSQL ends the session of a worker that is frozen for ten seconds.
FROZEN_SECONDS = sized(13.0, 60.0)
WORKERS = 4
AGGREGATES = 97
SOME = 20  # events in a transaction
LIMIT = 20_000  # bytes that the topics take

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(4 * PATIENCE_SECONDS + 180 * ROUNDS)]


@dataclass(slots=True)
class Writer:
    """Commits events whatever happens to the server, and knows of which it cannot know the end."""

    relayed: Relayed
    finish: threading.Event = field(default_factory=threading.Event)
    poison: queue.Queue[Event] = field(default_factory=queue.Queue)  # to be written next
    poisoned: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Write until there are enough events and nobody needs more."""
        count = 0
        while len(self.relayed.written) < EVENTS or not self.finish.is_set() or not self.poison.empty():
            made = self.relayed.events(f"k{number % AGGREGATES}" for number in range(count, count + SOME))
            poison = [] if self.poison.empty() else [self.poison.get()]
            count += SOME
            half = SOME // 2
            try:
                with self.relayed.connect() as conn, conn.transaction():
                    outbox.add_many(conn, [*made[:half], *poison, *made[half:]])
                self.poisoned |= {str(event.id) for event in poison}
            except psycopg.Error:
                self.relayed.doubt(made)
                for event in poison:
                    self.relayed.doubtful.add(str(event.id))
                    self.poison.put(replace(event, id=outbox.new_id()))
                time.sleep(0.2)
            time.sleep(SOME / (RATE if count < EVENTS else IDLE_RATE))


@dataclass(slots=True)
class Storm:
    """The workers, and what happens to them."""

    relayed: Relayed
    folder: Path
    rng: random.Random
    writer: Writer
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        """Start workers until there are enough of them, as a service manager does."""
        living = []
        for worker in self.workers:
            code = worker.poll()
            assert code in (None, -signal.SIGKILL, ExitCode.UNREACHABLE), self.said()
            if code is None:
                living.append(worker)
        while len(living) < WORKERS:
            log = self.folder / f"worker-{sum(self.happened.values())}-{len(living)}.log"
            living.append(self.relayed.start("--batch", "200", "--on-poison", "skip", log=log))
        self.workers = living

    def said(self) -> str:
        """Put together what the workers have printed."""
        return "\n".join(f"{log.name}: {log.read_text()}" for log in sorted(self.folder.glob("*.log")))

    def kill_worker(self) -> None:
        self.rng.choice(self.workers).kill()
        time.sleep(0.1)
        self.start()

    def freeze_worker(self) -> None:
        """Freeze a worker, let other things happen meanwhile, and wake it up."""
        frozen, moment = self.rng.choice(self.workers), time.monotonic()
        os.kill(frozen.pid, signal.SIGSTOP)
        self.workers.remove(frozen)
        self.refuse_record()
        self.end_sessions()
        while time.monotonic() < moment + FROZEN_SECONDS:
            time.sleep(0.1)
        os.kill(frozen.pid, signal.SIGCONT)
        self.workers.append(frozen)

    def end_sessions(self) -> None:
        """Cut the sessions of workers, with their locks, while batches are on their way."""
        until(self.relayed.end_sessions, "a worker's session")

    def refuse_record(self) -> None:
        """Put a row into the middle of a transaction that no topic takes."""
        noise = self.rng.randbytes(LIMIT).hex()
        event = outbox.event(aggregate_type="order", aggregate_id="k3", event_type="Large", payload=noise)
        self.writer.poison.put(event)

    def kill_kafka(self) -> None:
        self._kill("kafka")

    def kill_postgres(self) -> None:
        self._kill("postgres")

    def _kill(self, service: str) -> None:
        server = self.relayed.site.database.server
        server.kill(service)
        time.sleep(0.5)
        server.start(service)

    def rage(self) -> None:
        """Let everything happen, in an order that only the seed knows."""
        calamities: list[Callable[[], None]] = [
            self.kill_worker,
            self.freeze_worker,
            self.kill_kafka,
            self.kill_postgres,
            self.end_sessions,
            self.refuse_record,
        ]
        for _ in range(ROUNDS):
            for calamity in self.rng.sample(calamities, len(calamities)):
                calamity()
                self.happened[calamity.__name__] += 1
                self.relayed.await_left(2000)  # the load goes on, and the relay keeps up with it
                self.start()

    def end(self) -> None:
        """Stop the workers in an orderly way, once all of them have begun."""

        def at_work() -> bool:
            self.start()  # one that began while a server was away has ended
            return self.relayed.sessions() >= WORKERS

        until(at_work, "every worker's session")
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            assert worker.wait(timeout=PATIENCE_SECONDS) == 0, self.said()


def test_a_storm_over_four_workers(new_relayed: NewRelayed, tmp_path: Path) -> None:
    """Each calamity happens under load, at least once."""
    print(f"OUTBOX_SEED={SEED} repeats the order of what happens")
    kafka = {
        "defaults": {"config": {"max.message.bytes": str(LIMIT)}},
        "client": {"compression.type": "lz4"},  # so that only the broker knows what is too large
    }
    relayed = new_relayed(shards=8, kafka=kafka)
    writer = Writer(relayed)
    storm = Storm(relayed, tmp_path, random.Random(SEED), writer)
    thread = threading.Thread(target=writer.run)
    storm.start()
    thread.start()
    try:
        until(relayed.sessions, "a worker's session")
        storm.rage()
    finally:
        writer.finish.set()
        thread.join()
    relayed.await_left(0)
    storm.end()
    print(dict(storm.happened))
    assert "Traceback" not in storm.said()
    assert relayed.ledger().clean
    with relayed.connect() as conn:
        buried = {str(found) for (found,) in conn.execute("SELECT id FROM outbox_dead_letter")}
    assert len(writer.poisoned) == 2 * ROUNDS  # one of them in front of a frozen worker
    assert writer.poisoned <= buried <= writer.poisoned | relayed.doubtful
