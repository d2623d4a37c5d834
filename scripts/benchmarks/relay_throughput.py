"""The relay: throughput next to a peer's, write-ahead log and round trips per event, and latency.

The peer is faststream-outbox, installed from the package index into an environment for this benchmark
only. Its line is left out when the installation fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from benchmarks.backlog import WARM_UP_SHARE, write_events
from benchmarks.connectors import AGGREGATE_TYPE, wait_until
from benchmarks.figures import Figure, Goal, percentile
from benchmarks.latency import WARM_UP_SECONDS, Listener, commit_at_rate, commit_event
from benchmarks.rounds import Log
from benchmarks.servers import ROOT, Servers
from outbox_connectors.definition import Definition, TopicSpec
from outbox_connectors.loading import loads
from outbox_pipeline import relay
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.wakeup import Waiter
from outbox_pipeline.servers import postgres, topics

RATE, RATIO = "relay of a backlog", "the same, next to a peer"
WAL, QUERIES = "relay: write-ahead log", "relay: round trips"
LATENCY_50, LATENCY_99 = "relay at 200/s, p50", "relay at 200/s, p99"
WORKERS: Final = 4
EXACTLY, AT_LEAST, PEER = "exactly once", "transactions off", "faststream-outbox"
WITH_PAGES = "with full-page images"
GOALS = (
    Goal(RATE, EXACTLY, at_least=30_000, absolute=True),
    Goal(RATIO, EXACTLY, at_least=10),
    Goal(WAL, EXACTLY, at_most=100, absolute=True),
    Goal(QUERIES, EXACTLY, at_most=0.01, absolute=True),
    Goal(LATENCY_50, EXACTLY, at_most=15, absolute=True),
    Goal(LATENCY_99, EXACTLY, at_most=100, absolute=True),
    Goal(LATENCY_99, AT_LEAST, at_most=50, absolute=True),
)
POLL_SECONDS = 0.05
PEER_PACKAGES = ("faststream-outbox[asyncpg]==0.19.0", "faststream[confluent]==0.7.8")
PEER_TOPIC = "bench.peer"
DEFINITION = """\
pipeline: bench_relay
postgres:
  admin: "{dsn}"
  connector: {{host: localhost, database: shop, user: bench, password: "${{env:NONE}}"}}
kafka:
  client: {{bootstrap.servers: "{bootstrap}"}}
  topic: bench.relay.{{aggregate_type}}
  aggregates: {{{aggregate}: {{partitions: 6}}}}
connect:
  url: http://localhost:1
"""


def measure(servers: Servers, rounds: int, events: int, seconds: float, log: Log) -> list[Figure]:
    """Set up an outbox for the relay, and measure the relay and its peer in turn."""
    values = {"dsn": servers.dsn("shop"), "bootstrap": servers.bootstrap, "aggregate": AGGREGATE_TYPE}
    definition = loads(DEFINITION.format(**values), source="bench", environ=os.environ)
    with postgres.as_admin(definition, "bench") as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        conn.execute("DROP TABLE IF EXISTS outbox CASCADE")
        conn.execute("DROP TABLE IF EXISTS outbox_relay, outbox_relay_batch, outbox_dead_letter, outbox_road")
        schema.init(conn, definition, schema.SetUpOptions(shards=8), say=lambda _: None)
        topics.create(definition.kafka, [TopicSpec(PEER_TOPIC, 6, 1, {})])
        found = _backlogs(servers, definition, conn, rounds, events, log)
        for variant in (EXACTLY, AT_LEAST):
            found += _latency(definition, servers, conn, variant, rounds, seconds, log)
        conn.execute("DROP TABLE outbox CASCADE")
    return found


def _backlogs(
    servers: Servers,
    definition: Definition,
    conn: psycopg.Connection[Any],
    rounds: int,
    events: int,
    log: Log,
) -> list[Figure]:
    peer = _install_peer(log)
    rates: dict[str, list[float]] = {EXACTLY: [], AT_LEAST: [], PEER: []}
    wal: list[float] = []
    pages: list[float] = []
    queries: list[float] = []
    for number in range(rounds + 1):
        amount = events if number else events // WARM_UP_SHARE
        warm = " (warm-up)" if number == 0 else ""
        for variant in (EXACTLY, AT_LEAST):
            log(f"relay, round {number} of {rounds}: {amount:,} events, {variant}{warm}")
            write_events(conn, amount)
            before, done = _wal_position(conn), _transactions(conn)
            rate, polls = _relay_backlog(definition, conn, amount, transactions=variant == EXACTLY)
            rates[variant].append(rate)
            if variant == EXACTLY:
                wal.append(_record_bytes(conn, before) / amount)
                pages.append(_bytes_since(conn, before) / amount)
                queries.append((_transactions(conn) - done - polls) / amount)
        if peer:
            log(f"relay, round {number} of {rounds}: {amount // 20:,} events, {PEER}{warm}")
            rates[PEER].append(_relay_with_peer(peer, servers, amount // 20))
    figures = [
        Figure(RATE, variant, tuple(found[1:]), "events/s", more_is_better=True)
        for variant, found in rates.items()
        if variant != PEER
    ]
    if peer:
        figures += [
            Figure(
                RATIO,
                variant,
                tuple(rates[variant][1:]),
                "events/s",
                more_is_better=True,
                reference=variant == PEER,
            )
            for variant in (PEER, EXACTLY)
        ]
    figures.append(Figure(WAL, EXACTLY, tuple(wal[1:]), "B/event", more_is_better=False))
    figures.append(Figure(WAL, WITH_PAGES, tuple(pages[1:]), "B/event", more_is_better=False))
    figures.append(Figure(QUERIES, EXACTLY, tuple(queries[1:]), "per event", more_is_better=False))
    return figures


def _relay_backlog(
    definition: Definition, conn: psycopg.Connection[Any], events: int, *, transactions: bool
) -> tuple[float, int]:
    """Let the relay empty the outbox. Returns events per second, and how often this function polled.

    The rate is measured from the first deleted row to the last, without the start of the processes.
    """
    settings = relay.RelaySettings(workers=WORKERS, until_empty=True, transactions=transactions)
    stop, waiter = threading.Event(), Waiter()
    work = threading.Thread(
        target=lambda: relay.run(definition, settings, say=lambda _: None, stop=stop, waiter=waiter)
    )
    work.start()
    began = counted = 0.0
    first = events
    polls = 1
    while (left := _left(conn)) > 0 and work.is_alive():
        if not began and left < events:
            began, first = time.monotonic(), left
        time.sleep(POLL_SECONDS)
        counted = time.monotonic()
        polls += 1
    work.join()
    return first / max(counted - began, POLL_SECONDS), polls


def _install_peer(log: Log) -> str:
    """Create the peer's environment unless it exists. Returns its Python; empty if that failed."""
    folder = ROOT / ".stack" / "bench-peer"
    python = folder / "bin" / "python"
    installed = folder / "installed"  # the versions that pip installed; asking it again takes seconds
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEER_PACKAGES]
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if not installed.exists() or installed.read_text() != " ".join(PEER_PACKAGES):
            log(f"installing {', '.join(PEER_PACKAGES)}")
            subprocess.run(pip, check=True, stdout=sys.stderr)
            installed.write_text(" ".join(PEER_PACKAGES))
    except subprocess.CalledProcessError:
        log(f"{PEER} cannot be installed and is left out")
        return ""
    return str(python)


def _relay_with_peer(python: str, servers: Servers, events: int) -> float:
    e = servers.environ
    url = f"postgresql+asyncpg://{e['PGUSER']}:{e['PGPASSWORD']}@{e['PGHOST']}:{e['PGPORT']}/shop"
    program = str(ROOT / "scripts" / "benchmarks" / "peer_relay.py")
    command = [python, program, url, servers.bootstrap, PEER_TOPIC, str(events)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return float(done.stdout.split()[-1])


def _latency(
    definition: Definition,
    servers: Servers,
    conn: psycopg.Connection[Any],
    variant: str,
    rounds: int,
    seconds: float,
    log: Log,
) -> list[Figure]:
    """Measure from the return of COMMIT to the arrival at a read_committed consumer."""
    found: list[list[float]] = []
    for number in range(rounds):
        log(f"relay, latency, round {number + 1} of {rounds}: {variant}")
        found.append(_latencies(definition, servers, conn, variant, seconds))
    return [
        Figure(
            work, variant, tuple(percentile(values, percent) for values in found), "ms", more_is_better=False
        )
        for work, percent in ((LATENCY_50, 50), (LATENCY_99, 99))
    ]


def _latencies(
    definition: Definition, servers: Servers, conn: psycopg.Connection[Any], variant: str, seconds: float
) -> list[float]:
    topic = definition.kafka.topic_of(AGGREGATE_TYPE)
    with (
        _relaying(definition, transactions=variant == EXACTLY),
        Listener(servers.bootstrap, topic, 6) as listener,
    ):
        first = commit_event(conn)
        wait_until(lambda: first in listener.arrived, "no event through the relay")
        commit_at_rate(conn, WARM_UP_SECONDS)
        committed = commit_at_rate(conn, seconds)
        wait_until(lambda: committed.keys() <= listener.arrived.keys(), "events are missing")
        return [(listener.arrived[event] - at) / 1e6 for event, at in committed.items()]


@contextmanager
def _relaying(definition: Definition, *, transactions: bool) -> Iterator[None]:
    settings = relay.RelaySettings(workers=1, transactions=transactions)
    stop, waiter = threading.Event(), Waiter()
    work = threading.Thread(
        target=lambda: relay.run(definition, settings, say=lambda _: None, stop=stop, waiter=waiter)
    )
    work.start()
    try:
        yield
    finally:
        stop.set()
        waiter.wake()
        work.join()


def _left(conn: psycopg.Connection[Any]) -> int:
    return _number(conn, "SELECT count(*) FROM public.outbox")


def _wal_position(conn: psycopg.Connection[Any]) -> str:
    row = conn.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    return str(row[0]) if row else ""


def _bytes_since(conn: psycopg.Connection[Any], lsn: str) -> int:
    return _number(conn, "SELECT (pg_current_wal_lsn() - %s::pg_lsn)::bigint", lsn)


def _record_bytes(conn: psycopg.Connection[Any], since: str) -> int:
    """Sum the sizes of the records without full-page images, which depend on the last checkpoint.

    Includes autovacuum and this benchmark's own polls: the first reader of a row writes hint bits.
    """
    query = (
        "SELECT sum(record_size)::bigint FROM pg_get_wal_stats(%s::pg_lsn, pg_current_wal_insert_lsn(), true)"
    )
    return _number(conn, query, since)


def _transactions(conn: psycopg.Connection[Any]) -> int:
    """Count committed transactions of this database; every statement of the relay is one."""
    time.sleep(1.2)  # sessions report once a second
    return _number(conn, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")


def _number(conn: psycopg.Connection[Any], query: str, *values: str) -> int:
    row = conn.execute(query.encode(), values).fetchone()
    return int(row[0]) if row else 0
