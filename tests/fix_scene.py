"""A whole road of its own, on which verdicts are produced: writer, ticker, connector, group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer
from psycopg import sql

from fix_scenarios import Acted
from fix_stack import Stack, _stack, in_use, run
from loss_lab import DEFINITION
from outbox_connectors.definition import Definition, Secret
from outbox_connectors.findings import Severity
from outbox_connectors.loading import loads
from outbox_pipeline import outbox
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.servers import logical_messages
from outbox_pipeline.watch.assess import assess
from outbox_pipeline.watch.history import History, remember
from outbox_pipeline.watch.sample import Sample
from outbox_pipeline.watch.sampling import TICKER_NAME, Sampler
from outbox_pipeline.watch.thresholds import MIB, Thresholds
from outbox_pipeline.watch.verdict import Verdict, VerdictKey
from waiting import PATIENCE_SECONDS, until

NAME = "scene"
STACK = f"{os.environ.get('OUTBOX_TEST_STACK', '')}-{NAME}".lstrip("-")  # two test runs do not share it
# Debezium answers every 10 s and Connect stores offsets every 60 s unless told otherwise.
QUICK = Thresholds(
    stuck=20.0,
    frozen=15.0,
    quiet_bytes=2 * MIB,
    stalled_critical=3600.0,
    group_lag=50,
    group_stopped=6.0,
)


@dataclass(slots=True)
class Scene:
    """The pipeline, its load, and a watch that looks at it with the product's own sampler."""

    stack: Stack
    definition: Definition
    file: Path
    client: ConnectClient
    act: Acted = lambda expected, got: None
    thresholds: Thresholds = QUICK
    history: History = field(default_factory=History)
    sampler: Sampler | None = None
    sample: Sample | None = None  # the last
    critical: list[str] = field(default_factory=list)  # the causes that were called critical

    def look(self) -> Verdict:
        if self.sampler is None:
            self.sampler = Sampler.of(self.definition)
        sample = self.sample = self.sampler.take()
        verdict = assess(self.history, sample, self.thresholds)
        self.history = remember(self.history, sample)
        if verdict.severity is Severity.CRITICAL:
            self.critical.append(f"{verdict.key.value}: {verdict.cause}")
        return verdict

    def expect(self, *keys: VerdictKey, steady: int = 1, seconds: float = PATIENCE_SECONDS) -> Verdict:
        """Look until the verdict is one of `keys` and stays so."""
        began, row, said = time.monotonic(), 0, []
        while True:
            verdict = self.look()
            said.append(verdict.key.value)
            row = row + 1 if verdict.key in keys else 0
            if row > steady:
                print(f"{time.monotonic() - began:5.1f} s: {', '.join(dict.fromkeys(said))}")
                self.act(keys[0].value if verdict.key not in keys else verdict.key.value, verdict.key.value)
                return verdict
            if time.monotonic() - began > seconds:
                self.act(keys[0].value, verdict.key.value)
                pytest.fail(
                    f"expected {keys[0].value}; it said {', '.join(dict.fromkeys(said))}: {verdict.cause}"
                )
            time.sleep(0.5)

    def await_status(self, *keys: VerdictKey) -> dict[str, Any]:
        """Ask as a user does until `outboxctl status` says one of `keys`; its document and exit code."""
        began, said = time.monotonic(), []

        def ask() -> dict[str, Any] | None:
            done = self.outboxctl("--json", "status")
            found: dict[str, Any] = json.loads(done.stdout)
            said.append(found["verdict"])
            return {**found, "exit": done.returncode} if found["verdict"] in keys else None

        found = until(ask, " or ".join(keys))
        assert found is not None
        print(f"status after {time.monotonic() - began:.1f} s: {', '.join(dict.fromkeys(said))}")
        self.act(VerdictKey(found["verdict"]).value, found["verdict"])
        return found

    @contextmanager
    def reading(self, group: str) -> Iterator[None]:
        """Read the topic as a member of a group, and commit."""
        stop = threading.Event()
        settings = {"group.id": group, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
        consumer = Consumer({**self.definition.kafka.client, **settings})
        consumer.subscribe([self.definition.kafka.topic_of("order")])

        def read() -> None:
            while not stop.is_set():
                consumer.poll(0.2)
            consumer.close()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def forget(self) -> None:
        """Let the next look begin with sessions of its own."""
        if self.sampler is not None:
            self.sampler.close()
        self.sampler = None

    @property
    def database(self) -> str:
        return self.definition.postgres.connector.database

    def connect(self, application: str = "scene") -> psycopg.Connection[Any]:
        conninfo = self.stack.conninfo(self.database, application_name=application)
        return psycopg.connect(conninfo, autocommit=True)

    @contextmanager
    def setting(self, **settings: str) -> Iterator[None]:
        """Change settings of the server for the length of a block."""
        with self.connect() as conn:
            for name, value in settings.items():
                statement = sql.SQL("ALTER SYSTEM SET {} = {}")
                conn.execute(statement.format(sql.Identifier(name), sql.Literal(value)))
            conn.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            with self.connect() as conn:
                for name in settings:
                    conn.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
                conn.execute("SELECT pg_reload_conf()")

    def write(self, rows: int = 20) -> None:
        with psycopg.connect(self.stack.conninfo(self.database)) as conn:
            outbox.add_many(
                conn,
                [
                    outbox.event(aggregate_type="order", aggregate_id=str(n), event_type="Placed", payload={})
                    for n in range(rows)
                ],
            )

    @contextmanager
    def load(self, *, events: bool = True, ticks: bool = True) -> Iterator[None]:
        """Write events and ticks twice a second, through every outage."""
        stop = threading.Event()

        def go() -> None:
            while not stop.wait(0.5):
                with suppress(psycopg.Error), self.connect(TICKER_NAME if ticks else "scene") as conn:
                    while not stop.wait(0.5):
                        if ticks:
                            logical_messages.emit(conn, self.definition.heartbeat_prefix)
                        if events:
                            self.write()

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_SECONDS)

    def outboxctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("outboxctl"), "-f", str(self.file), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": "/usr/bin:/bin",
                "NO_COLOR": "1",
                "HOME": str(self.file.parent),
                **self.stack.environ,
            },
        )


@contextmanager
def applied(stack: Stack, name: str, folder: Path) -> Iterator[Scene]:
    """Bring up a pipeline in a database of its own."""
    with psycopg.connect(stack.conninfo(), autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    text = DEFINITION.format(name=name, database=name, **stack.environ)
    file = folder / f"{name}.yaml"
    file.write_text(text)
    definition = loads(text, source=str(file), environ={})
    admin = Secret(stack.conninfo(name))
    definition = replace(definition, postgres=replace(definition.postgres, admin=admin))
    with ConnectClient(definition.connect) as client:
        scene = Scene(stack, definition, file, client)
        done = scene.outboxctl("apply")
        assert done.returncode == 0, done.stdout + done.stderr
        yield scene
        scene.forget()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with in_use(STACK):
        run(STACK, "reset")
        run(STACK, "up", "--set", "wal_sender_timeout=30s")
        with applied(_stack(STACK), NAME, tmp_path_factory.mktemp(NAME)) as scene:
            yield scene
        run(STACK, "reset")


@pytest.fixture
def scene(whole: Scene, acted: Acted) -> Iterator[Scene]:
    whole.act = acted
    whole.thresholds = QUICK
    whole.critical.clear()
    yield whole
    whole.forget()
