"""The relay: a backlog beside the peer's, its log and round trips, and how soon an event is there.

The peer is faststream-outbox, installed from the package index into an environment that only this
benchmark uses. Where that fails its line is left out.
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

from benchmarks.backlog import _write
from benchmarks.latency import WARM_UP_SECONDS, Listener, _commit, _load
from benchmarks.measures import Figure, Goal, percentile
from benchmarks.roads import AGGREGATE_TYPE, wait_until
from benchmarks.rounds import Say
from benchmarks.servers import ROOT, Servers
from outbox_connectors.definition import Definition, TopicSpec
from outbox_connectors.loading import loads
from outbox_pipeline import postgres, relay, topics
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.wakeup import Waiter

RATE, RATIO = "relay of a backlog", "the same, beside a peer"
LOG, TRIPS = "relay: write-ahead log", "relay: round trips"
SOON_50, SOON_99 = "relay at 200/s, p50", "relay at 200/s, p99"
WORKERS: Final = 4
EXACTLY, AT_LEAST, PEER = "exactly once", "transactions off", "faststream-outbox"
WITH_PAGES = "with full-page images"
GOALS = (
    Goal(RATE, EXACTLY, at_least=30_000, absolute=True),
    Goal(RATIO, EXACTLY, at_least=10),
    Goal(LOG, EXACTLY, at_most=100, absolute=True),
    Goal(TRIPS, EXACTLY, at_most=0.01, absolute=True),
    Goal(SOON_50, EXACTLY, at_most=15, absolute=True),
    Goal(SOON_99, EXACTLY, at_most=100, absolute=True),
    Goal(SOON_99, AT_LEAST, at_most=50, absolute=True),
)
SIZES = {False: (3, 200_000, 10.0), True: (1, 60_000, 5.0)}  # rounds, events, seconds of latency: full, quick
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


def measure(servers: Servers, rounds: int, events: int, seconds: float, say: Say) -> list[Figure]:
    """Set up an outbox for the relay, and let it and its peer work in turns."""
    values = {"dsn": servers.dsn("shop"), "bootstrap": servers.bootstrap, "aggregate": AGGREGATE_TYPE}
    definition = loads(DEFINITION.format(**values), source="bench", environ=os.environ)
    with postgres.as_admin(definition, "bench") as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        conn.execute("DROP TABLE IF EXISTS outbox CASCADE")
        conn.execute("DROP TABLE IF EXISTS outbox_relay, outbox_relay_batch, outbox_dead_letter, outbox_road")
        schema.init(conn, definition, schema.Wishes(shards=8), say=lambda _: None)
        topics.create(definition.kafka, [TopicSpec(PEER_TOPIC, 6, 1, {})])
        found = _backlogs(servers, definition, conn, rounds, events, say)
        for way in (EXACTLY, AT_LEAST):
            found += _soon(definition, servers, conn, way, rounds, seconds, say)
        conn.execute("DROP TABLE outbox CASCADE")
    return found


def _backlogs(
    servers: Servers,
    definition: Definition,
    conn: psycopg.Connection[Any],
    rounds: int,
    events: int,
    say: Say,
) -> list[Figure]:
    peer = _install_peer(say)
    rates: dict[str, list[float]] = {EXACTLY: [], AT_LEAST: [], PEER: []}
    log: list[float] = []
    pages: list[float] = []
    trips: list[float] = []
    for number in range(rounds + 1):
        warm = " (warm-up)" if number == 0 else ""
        for way in (EXACTLY, AT_LEAST):
            say(f"relay, round {number} of {rounds}: {events:,} events, {way}{warm}")
            _write(conn, events)
            before, done = _log_end(conn), _transactions(conn)
            rate, looks = _carry(definition, conn, events, transactions=way == EXACTLY)
            rates[way].append(rate)
            if way == EXACTLY:
                log.append(_record_bytes(conn, before) / events)
                pages.append(_bytes_since(conn, before) / events)
                trips.append((_transactions(conn) - done - looks) / events)
        if peer:
            say(f"relay, round {number} of {rounds}: {events // 20:,} events, {PEER}{warm}")
            rates[PEER].append(_carry_as_peer(peer, servers, events // 20))
    figures = [
        Figure(RATE, way, tuple(found[1:]), "events/s", more_is_better=True)
        for way, found in rates.items()
        if way != PEER
    ]
    if peer:
        figures += [
            Figure(RATIO, way, tuple(rates[way][1:]), "events/s", more_is_better=True, reference=way == PEER)
            for way in (PEER, EXACTLY)
        ]
    figures.append(Figure(LOG, EXACTLY, tuple(log[1:]), "B/event", more_is_better=False))
    figures.append(Figure(LOG, WITH_PAGES, tuple(pages[1:]), "B/event", more_is_better=False))
    figures.append(Figure(TRIPS, EXACTLY, tuple(trips[1:]), "a event", more_is_better=False))
    return figures


def _carry(
    definition: Definition, conn: psycopg.Connection[Any], events: int, *, transactions: bool
) -> tuple[float, int]:
    """Let the relay empty the outbox. Returns events a second, and how often we looked at the outbox.

    The rate counts from the first row that is gone to the last, so not the start of the processes.
    """
    settings = relay.Settings(workers=WORKERS, until_empty=True, transactions=transactions)
    stop, waiter = threading.Event(), Waiter()
    work = threading.Thread(
        target=lambda: relay.run(definition, settings, say=lambda _: None, stop=stop, waiter=waiter)
    )
    work.start()
    began = counted = 0.0
    first = events
    looks = 1
    while (left := _left(conn)) > 0 and work.is_alive():
        if not began and left < events:
            began, first = time.monotonic(), left
        time.sleep(POLL_SECONDS)
        counted = time.monotonic()
        looks += 1
    work.join()
    return first / max(counted - began, POLL_SECONDS), looks


def _install_peer(say: Say) -> str:
    """Make the peer's environment, once; returns its Python, or nothing where there is no package index."""
    folder = ROOT / ".stack" / "bench-peer"
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEER_PACKAGES]
    try:
        if not python.exists():
            say(f"installing {', '.join(PEER_PACKAGES)}")
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run(pip, check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError:
        say(f"{PEER} cannot be installed, so it is left out")
        return ""
    return str(python)


def _carry_as_peer(python: str, servers: Servers, events: int) -> float:
    e = servers.environ
    url = f"postgresql+asyncpg://{e['PGUSER']}:{e['PGPASSWORD']}@{e['PGHOST']}:{e['PGPORT']}/shop"
    program = str(ROOT / "scripts" / "benchmarks" / "peer_relay.py")
    command = [python, program, url, servers.bootstrap, PEER_TOPIC, str(events)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return float(done.stdout.split()[-1])


def _soon(
    definition: Definition,
    servers: Servers,
    conn: psycopg.Connection[Any],
    way: str,
    rounds: int,
    seconds: float,
    say: Say,
) -> list[Figure]:
    """Measure from the return of COMMIT to the record in a read_committed consumer's hands."""
    found: list[list[float]] = []
    for number in range(rounds):
        say(f"relay, latency, round {number + 1} of {rounds}: {way}")
        found.append(_latencies(definition, servers, conn, way, seconds))
    return [
        Figure(work, way, tuple(percentile(values, percent) for values in found), "ms", more_is_better=False)
        for work, percent in ((SOON_50, 50), (SOON_99, 99))
    ]


def _latencies(
    definition: Definition, servers: Servers, conn: psycopg.Connection[Any], way: str, seconds: float
) -> list[float]:
    topic = definition.kafka.topic_of(AGGREGATE_TYPE)
    with (
        _relaying(definition, transactions=way == EXACTLY),
        Listener(servers.bootstrap, topic, 6) as listener,
    ):
        first = _commit(conn)
        wait_until(lambda: first in listener.arrived, "no event through the relay")
        _load(conn, WARM_UP_SECONDS)
        committed = _load(conn, seconds)
        wait_until(lambda: committed.keys() <= listener.arrived.keys(), "events are missing")
        return [(listener.arrived[event] - at) / 1e6 for event, at in committed.items()]


@contextmanager
def _relaying(definition: Definition, *, transactions: bool) -> Iterator[None]:
    settings = relay.Settings(workers=1, transactions=transactions)
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


def _log_end(conn: psycopg.Connection[Any]) -> str:
    row = conn.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    return str(row[0]) if row else ""


def _bytes_since(conn: psycopg.Connection[Any], lsn: str) -> int:
    return _number(conn, "SELECT (pg_current_wal_lsn() - %s::pg_lsn)::bigint", lsn)


def _record_bytes(conn: psycopg.Connection[Any], since: str) -> int:
    """Count the records apart from full-page images, which depend on when the last checkpoint was.

    Autovacuum and this benchmark's own looks are in it; whatever reads new rows first writes hint bits.
    """
    query = (
        "SELECT sum(record_size)::bigint FROM pg_get_wal_stats(%s::pg_lsn, pg_current_wal_insert_lsn(), true)"
    )
    return _number(conn, query, since)


def _transactions(conn: psycopg.Connection[Any]) -> int:
    """Count what this database has committed: every statement of the relay is a transaction."""
    time.sleep(1.2)  # sessions report once a second
    return _number(conn, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")


def _number(conn: psycopg.Connection[Any], query: str, *values: str) -> int:
    row = conn.execute(query.encode(), values).fetchone()
    return int(row[0]) if row else 0
