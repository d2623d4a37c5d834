"""What the watch costs: a sample by number of slots on the server, and a scrape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.measures import Figure
from benchmarks.rounds import Say
from benchmarks.servers import Servers, started
from outbox_connectors.definition import TableName
from outbox_pipeline.watch.assess import verdict_of
from outbox_pipeline.watch.facts import facts_of
from outbox_pipeline.watch.history import History
from outbox_pipeline.watch.look import Answer
from outbox_pipeline.watch.metrics import Counts, exposition
from outbox_pipeline.watch.sample import Names, Sample
from outbox_pipeline.watch.sources.postgres import PostgresSource
from outbox_pipeline.watch.thresholds import Thresholds

SAMPLE, SCRAPE = "watch: one look at PostgreSQL", "watch: one scrape"
FEW, SOME, MANY = 1, 50, 1000
LOOKS = 40
SETTINGS = ("max_replication_slots=1100", "fsync=off")


def way(slots: int) -> str:
    """Name a figure."""
    return f"{slots} slots" if slots > 1 else "1 slot"


def measure(name: str, rounds: int, say: Say) -> list[Figure]:
    """Time looks at a server with ever more slots, and a scrape of the last answer."""
    figures = []
    with started(f"{name}-slots", ("postgres",), SETTINGS) as servers, _source(servers) as source:
        for slots in (FEW, SOME, MANY):
            say(f"{slots} slots")
            _make(servers, slots)
            source.look()
            taken = tuple(_seconds(source) * 1000 for _ in range(rounds))
            figures.append(
                Figure(SAMPLE, way(slots), taken, "ms", more_is_better=False, reference=slots == SOME)
            )
        answer = _answer(source)
        scrapes = tuple(_scrape(answer) * 1000 for _ in range(rounds))
    return [*figures, Figure(SCRAPE, way(MANY), scrapes, "ms", more_is_better=False)]


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


NAMES = Names(
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
    """Time one look: the mean of many, since one is short."""
    began = time.perf_counter()
    for _ in range(LOOKS):
        source.look()
    return (time.perf_counter() - began) / LOOKS


def _answer(source: PostgresSource) -> Answer:
    facts = facts_of(History(), Sample(at=time.time(), names=NAMES, postgres=source.look()), Thresholds())
    return Answer(facts, verdict_of(facts))


def _scrape(answer: Answer) -> float:
    began = time.perf_counter()
    for _ in range(LOOKS):
        exposition(answer, Counts())
    return (time.perf_counter() - began) / LOOKS
