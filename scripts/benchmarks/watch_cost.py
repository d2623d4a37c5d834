"""The cost of `watch`: a sample by number of slots, a scrape, its memory; and the time of `status`."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import psycopg

from benchmarks.figures import Figure, Goal
from benchmarks.rounds import Log
from benchmarks.servers import Servers, started
from benchmarks.sizes import LONG
from benchmarks.startup import OUTBOXCTL
from outbox_connectors.definition import TableName
from outbox_connectors.errors import ExitCode
from outbox_pipeline.watch.assess import verdict_of
from outbox_pipeline.watch.facts import facts_of
from outbox_pipeline.watch.history import History, remember
from outbox_pipeline.watch.long_running import WatchState
from outbox_pipeline.watch.metrics import WatchCounts, exposition
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.sample import Sample, WatchedNames
from outbox_pipeline.watch.sources.postgres import PostgresSource
from outbox_pipeline.watch.thresholds import Thresholds

SAMPLE, SCRAPE = "watch: one sample of PostgreSQL", "watch: one scrape"
MEMORY, STATUS = "watch: memory that grows", "status without its interval"
FEW, SOME, MANY = 1, 50, 1000
REPEATS = 40
SETTINGS = ("max_replication_slots=1100", "fsync=off")
STEP_SECONDS = 10.0  # between two samples, so that 10,000 of them fill every bucket of a day
INTERVAL_SECONDS = 0.2
START = 1_800_000_000.0
ANSWERED = (ExitCode.OK, ExitCode.WARNING, ExitCode.CRITICAL)
GOALS = (
    Goal(SAMPLE, f"{SOME} slots", at_most=50, absolute=True),
    Goal(SAMPLE, f"{MANY} slots", at_most=20),
    Goal(MEMORY, f"{LONG.watch_samples:,} samples", at_most=5, absolute=True),
    Goal(STATUS, "outboxctl status", at_most=1.5, absolute=True),
    Goal(SCRAPE, f"{MANY} slots", at_most=10, absolute=True),
)
DEFINITION = """\
pipeline: bench
postgres:
  connector: {{host: db, database: shop, user: bench_cdc, password: "${{env:X}}"}}
  slot: slot_0
  publication: slot_0
kafka:
  client: {{bootstrap.servers: "{OUTBOX_KAFKA_BOOTSTRAP}"}}
  aggregates: {{order: {{}}}}
connect:
  url: {OUTBOX_CONNECT_URL}
"""


def variant(slots: int) -> str:
    """Name the variant by its number of slots."""
    return f"{slots} slots" if slots > 1 else "1 slot"


def samples_of(samples: int) -> str:
    """Name the variant of the memory figure."""
    return f"{samples:,} samples"


def measure(name: str, rounds: int, samples: int, log: Log) -> list[Figure]:
    """Time `status`, samples of a server with ever more slots, and a scrape.

    With `samples` above 0, also measure the memory that so many samples take.
    """
    figures: list[Figure] = []
    memory: list[Figure] = []
    services = ("postgres", "kafka", "connect")
    with started(f"{name}-slots", services, SETTINGS) as servers, _source(servers) as source:
        _make(servers, FEW)
        log(f"outboxctl status, {rounds} rounds")
        answered = tuple(_status(servers) - INTERVAL_SECONDS for _ in range(rounds))
        figures.append(Figure(STATUS, "outboxctl status", answered, "s", more_is_better=False))
        for slots in (FEW, SOME, MANY):
            log(f"{slots} slots")
            _make(servers, slots)
            source.look()
            taken = tuple(_seconds(source) * 1000 for _ in range(rounds))
            figures.append(
                Figure(SAMPLE, variant(slots), taken, "ms", more_is_better=False, reference=slots == SOME)
            )
            if slots == SOME and samples:
                log(f"{samples:,} samples")
                memory = [_memory(source, samples)]
        answer = _answer(source)
        scrapes = tuple(_scrape(answer) * 1000 for _ in range(rounds))
    return [*figures, *memory, Figure(SCRAPE, variant(MANY), scrapes, "ms", more_is_better=False)]


def _status(servers: Servers) -> float:
    """Time one run of the command."""
    with tempfile.TemporaryDirectory(prefix="bench-status-") as folder:
        file = Path(folder) / "outbox.yaml"
        file.write_text(DEFINITION.format(**servers.environ))
        options = ["--json", "status", "--no-history", "--interval", str(INTERVAL_SECONDS)]
        command = [str(OUTBOXCTL), "-f", str(file), *options]
        began = time.perf_counter()
        done = subprocess.run(
            command, capture_output=True, check=False, env={**os.environ, **servers.environ}
        )
        seconds = time.perf_counter() - began
    if done.returncode not in ANSWERED:
        raise subprocess.SubprocessError(
            f"outboxctl status ended with {done.returncode}: {done.stderr.decode()}"
        )
    return seconds


def _memory(source: PostgresSource, samples: int) -> Figure:
    """Take the samples of more than a day and measure how much memory grew after the first tenth."""
    numbers = count()

    def take() -> Sample:
        number = next(numbers)
        seen = source.look()
        written = replace(seen.server, wal_position=seen.server.wal_position + number * 1_000_000)
        return Sample(START + number * STEP_SECONDS, NAMES, replace(seen, server=written))

    state = WatchState(take, Thresholds())
    for _ in range(samples // 10):
        state.step()
    before = _resident_bytes()
    for _ in range(samples - samples // 10):
        state.step()
    grown = max(0, _resident_bytes() - before) / 1024 / 1024
    return Figure(MEMORY, samples_of(samples), (grown,), "MB", more_is_better=False)


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@contextmanager
def _source(servers: Servers) -> Iterator[PostgresSource]:
    with psycopg.connect(servers.dsn("shop"), autocommit=True) as conn:
        conn.execute("CREATE TABLE outbox (id uuid PRIMARY KEY, occurred_at timestamptz, payload jsonb)")
        conn.execute("CREATE PUBLICATION slot_0 FOR TABLE outbox")
    source = PostgresSource(
        lambda: psycopg.connect(servers.dsn("shop"), autocommit=True), NAMES, TableName("public", "outbox")
    )
    try:
        yield source
    finally:
        source.close()


NAMES = WatchedNames(
    pipeline="bench",
    database="shop",
    slot="slot_0",
    publication="slot_0",
    table="public.outbox",
    connector="bench",
    connector_user="bench",
)


def _make(servers: Servers, wanted: int) -> None:
    with psycopg.connect(servers.dsn("shop"), autocommit=True) as conn:
        row = conn.execute("SELECT count(*) FROM pg_replication_slots").fetchone()
        for number in range(row[0] if row else 0, wanted):
            conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"slot_{number}",))


def _seconds(source: PostgresSource) -> float:
    """Time one sample: the mean of many, since one is short."""
    began = time.perf_counter()
    for _ in range(REPEATS):
        source.look()
    return (time.perf_counter() - began) / REPEATS


def _answer(source: PostgresSource) -> Assessment:
    sample = Sample(at=time.time(), names=NAMES, postgres=source.look())
    facts = facts_of(remember(History(), sample), sample, Thresholds())
    return Assessment(facts, verdict_of(facts))


def _scrape(answer: Assessment) -> float:
    began = time.perf_counter()
    for _ in range(REPEATS):
        exposition(answer, WatchCounts())
    return (time.perf_counter() - began) / REPEATS
