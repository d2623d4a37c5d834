"""An outbox that is relayed, with a reader that keeps a ledger of what arrived.

relay_servers    PostgreSQL and Kafka of the test stack, without Connect
new_relayed      new_relayed(shards=4, ...): a database, an outbox set up for the relay, topics of its own
relayed          the same with its defaults
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from typing import Any, LiteralString, Protocol

import psycopg
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from psycopg.rows import TupleRow

from announced import ANNOUNCED, await_watching
from asking import administrator
from fix_provision import PASSWORD, NewSite, Site
from fix_stack import Stack, _stack, run
from outbox_connectors.definition import Definition
from outbox_connectors.record import Event
from outbox_pipeline import outbox, relay
from outbox_pipeline.relay import Mode, schema
from outbox_pipeline.servers.topic_reader import arrival
from waiting import PATIENCE_SECONDS

VICTIM = Path(__file__).with_name("relay_victim.py")


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was written against what a reader saw."""

    written: int
    delivered: int
    missing: int
    duplicated: int
    unexpected: int
    out_of_order: int

    def __str__(self) -> str:
        return (
            f"written {self.written:,}  delivered {self.delivered:,}  missing {self.missing}  "
            f"duplicated {self.duplicated}  unexpected {self.unexpected}  out of order {self.out_of_order}"
        )

    @property
    def clean(self) -> bool:
        return not (self.missing or self.duplicated or self.unexpected or self.out_of_order)


@dataclass(slots=True)
class Relayed:
    """One outbox, its writers and its readers."""

    site: Site
    path: Path
    written: dict[str, tuple[str, int]] = field(default_factory=dict)  # id -> (aggregate, number in it)
    numbers: Counter[str] = field(default_factory=Counter)
    doubtful: set[str] = field(default_factory=set)  # may be committed or not
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def definition(self) -> Definition:
        return self.site.definition

    def connect(self) -> psycopg.Connection[TupleRow]:
        return self.site.database.connect()

    def events(self, keys: Iterable[str], *, aggregate_type: str = "order") -> list[Event]:
        """Make an event for each key, numbered within its aggregate."""
        made = []
        for key in keys:
            aggregate = f"{aggregate_type} {key}"
            self.numbers[aggregate] += 1
            event = outbox.event(
                aggregate_type=aggregate_type,
                aggregate_id=key,
                event_type="Counted",
                payload={"number": self.numbers[aggregate]},
            )
            self.written[str(event.id)] = (aggregate, self.numbers[aggregate])
            made.append(event)
        return made

    def write(self, count: int, *, keys: int = 97, aggregate_type: str = "order") -> None:
        """Write events of some aggregates, a hundred in a transaction."""
        with self.connect() as conn:
            for at in range(0, count, 100):
                some = [f"k{number % keys}" for number in range(at, min(count, at + 100))]
                with conn.transaction():
                    outbox.add_many(conn, self.events(some, aggregate_type=aggregate_type))

    def copied(self) -> None:
        """Keep a copy of the outbox and of the numbers of its batches."""
        with self.connect() as conn:
            conn.execute("CREATE TABLE kept AS SELECT * FROM outbox")
            conn.execute("CREATE TABLE kept_batch AS SELECT * FROM outbox_relay_batch")

    def put_back(self) -> None:
        """Put the rows of the copy back, as a connector leaves rows that it has published."""
        with self.connect() as conn:
            conn.execute("INSERT INTO outbox OVERRIDING SYSTEM VALUE SELECT * FROM kept")

    def restored(self) -> None:
        """Be as the copy was, like a restored server or a standby that lacked the end of the log."""
        self.put_back()
        with self.connect() as conn:
            conn.execute("UPDATE outbox_relay_batch AS b SET n = k.n, ids = k.ids FROM kept_batch AS k")

    def outboxctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command = [_outboxctl(), "-f", str(self.path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)

    def start(self, *arguments: str, log: Path | None = None) -> subprocess.Popen[str]:
        """Start a relay and leave it running; what it says goes to a pipe, or to `log`."""
        command = [_outboxctl(), "-f", str(self.path), "relay", *arguments]
        return self._popen(command, log)

    def announced(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a relay with a process group of its own, and wait until it heeds Ctrl-C."""
        command = [sys.executable, "-c", ANNOUNCED, "-f", str(self.path), "relay", *arguments]
        process = self._popen(command, new_session=True)
        assert process.stdout is not None
        await_watching(process.stdout)
        return process

    def victim(self, point: str, at: int = 1) -> subprocess.Popen[str]:
        """Start a worker that kills itself when it comes to a point of its work for the `at`th time."""
        return self._popen([sys.executable, str(VICTIM), str(self.path), point, str(at)])

    def _popen(
        self, command: list[str], log: Path | None = None, new_session: bool = False
    ) -> subprocess.Popen[str]:
        with log.open("w") if log else nullcontext(subprocess.PIPE) as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=new_session,
            )
        self.started.append(process)
        return process

    def sessions(self) -> int:
        """Count the sessions that workers have."""
        return self._over_sessions("count(*)")

    def end_sessions(self) -> int:
        """End the sessions of all workers and count them."""
        return self._over_sessions("count(pg_terminate_backend(pid))")

    def _over_sessions(self, what: LiteralString) -> int:
        query: LiteralString = (
            f"SELECT {what} FROM pg_stat_activity "  # noqa: S608
            "WHERE datname = current_database() AND application_name LIKE 'outboxctl relay %'"
        )
        with self.connect() as conn:
            row = conn.execute(query).fetchone()
        return int(row[0]) if row else 0

    def doubt(self, events: Iterable[Event]) -> None:
        """Take note that nobody knows whether these events were committed."""
        for event in events:
            del self.written[str(event.id)]
            self.doubtful.add(str(event.id))

    def until_empty(self, *arguments: str) -> dict[str, int]:
        """Relay until nothing is left and return the counters."""
        done = self.outboxctl("--json", "relay", "--until-empty", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        counters: dict[str, int] = json.loads(done.stdout)
        return counters

    def carry(self, mode: Mode = Mode.DELETE) -> int:
        """Relay in this process until nothing is left; return the number of events published."""
        settings = relay.RelaySettings(mode=mode, until_empty=True)
        return relay.run(self.definition, settings, say=print, stop=Flag()).published

    def left(self) -> int:
        with self.connect() as conn:
            row = conn.execute("SELECT count(*) FROM public.outbox").fetchone()
        assert row is not None
        return int(row[0])

    def rows_left(self) -> list[tuple[str, int]]:
        """List the aggregates that have rows left, with their number."""
        with self.connect() as conn:
            return conn.execute("SELECT aggregate_id, count(*) FROM public.outbox GROUP BY 1").fetchall()

    def await_left(self, limit: int) -> None:
        """Wait until at most so many rows are left."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (left := self.left()) > limit:
            assert time.monotonic() < deadline, f"{left} rows are left"
            time.sleep(0.05)

    def read(self, *, isolation: str = "read_committed") -> list[Message]:
        """Read every event topic from its beginning to the end it has now, partition by partition."""
        settings = {
            **self.definition.kafka.client,
            "group.id": f"{self.definition.pipeline}.reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
        consumer = Consumer(settings)
        try:
            parts = [
                TopicPartition(name, number, 0)
                for name, topic in consumer.list_topics(timeout=PATIENCE_SECONDS).topics.items()
                if name.startswith(self.definition.kafka.topic_of("")) and name != progress(self.definition)
                for number in topic.partitions
            ]
            consumer.assign(parts)
            return list(_to_the_ends(consumer, len(parts)))
        finally:
            consumer.close()

    def ledger(self) -> Ledger:
        """Compare what was written with what a read_committed reader sees, and print it."""
        seen: Counter[str] = Counter()
        order: dict[str, list[int]] = defaultdict(list)
        for message in self.read():
            event_id = arrival(message).header("id") or ""
            seen[event_id] += 1
            if event_id in self.written:
                key, number = self.written[event_id]
                order[key].append(number)
        ledger = Ledger(
            written=len(self.written),
            delivered=len(seen.keys() - self.doubtful),
            missing=len(self.written.keys() - seen.keys()),
            duplicated=sum(seen.values()) - len(seen),
            unexpected=len(seen.keys() - self.written.keys() - self.doubtful),
            out_of_order=sum(a >= b for found in order.values() for a, b in itertools.pairwise(found)),
        )
        print(ledger)
        return ledger


def progress(definition: Definition) -> str:
    return f"{definition.pipeline}.relay"


def _to_the_ends(consumer: Consumer, partitions: int) -> Iterator[Message]:
    ended: set[tuple[str | None, int | None]] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(ended) < partitions:
        assert time.monotonic() < deadline, "the ends of the partitions were not reached"
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                yield message
            else:
                ended.add((message.topic(), message.partition()))


def _outboxctl() -> str:
    return str(Path(sys.executable).with_name("outboxctl"))


class NewRelayed(Protocol):
    """Make a relayed outbox; keyword arguments are sections of the definition."""

    def __call__(
        self, shards: int = 4, *, archive: bool = False, notify: bool = True, **sections: Mapping[str, Any]
    ) -> Relayed: ...


@pytest.fixture(scope="session")
def relay_servers(stack_name: str) -> Stack:
    """PostgreSQL and Kafka of the test stack."""
    run(stack_name, "up", "postgres", "kafka")
    return _stack(stack_name)


@pytest.fixture
def new_relayed(relay_servers: Stack, new_site: NewSite, tmp_path: Path) -> Iterator[NewRelayed]:
    """A factory: an empty outbox with everything the relay needs; topics are deleted at the end."""
    with ExitStack() as made:

        def create(
            shards: int = 4, *, archive: bool = False, notify: bool = True, **sections: Mapping[str, Any]
        ) -> Relayed:
            site = new_site(relay_servers, PASSWORD, **sections)
            path = tmp_path / f"{site.database.name}.yaml"
            path.write_text(json.dumps(site.document))
            found = Relayed(site, path)
            made.callback(_clear_away, found)
            with site.admin() as conn:
                schema.init(conn, site.definition, schema.SetUpOptions(shards, notify, archive), say=print)
            return found

        yield create


@pytest.fixture
def relayed(new_relayed: NewRelayed) -> Relayed:
    """An outbox with four shards."""
    return new_relayed()


def _clear_away(found: Relayed) -> None:
    for process in found.started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
        process.communicate()
    admin = administrator(found.definition.kafka.client)
    names = admin.list_topics(timeout=PATIENCE_SECONDS).topics
    ours = [name for name in names if name.startswith(f"{found.definition.pipeline}.")]
    if ours:
        for future in admin.delete_topics(ours, operation_timeout=PATIENCE_SECONDS).values():
            future.exception(timeout=PATIENCE_SECONDS)
