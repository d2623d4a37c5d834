"""A backlog carried by the relay: how fast, how much write-ahead log, how many batches.

`measure` needs a database where `outboxctl relay --init` has been run for the definition, and nothing
else writing there: the log of the whole server is counted.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg

from benchmarks.backlog import _write
from benchmarks.measures import Figure
from benchmarks.rounds import Say
from outbox_connectors.definition import Definition
from outbox_pipeline import relay
from outbox_pipeline.relay.wakeup import Waiter

WORK = "relay of a backlog"
POLL_SECONDS = 0.02


def measure(
    definition: Definition, conn: psycopg.Connection[Any], rounds: int, events: int, workers: int, say: Say
) -> list[Figure]:
    """Write the backlog while no relay runs, then let `workers` processes carry it.

    The rate counts from the first row that is gone to the last, so not the start of the processes.
    """
    rates: list[float] = []
    log: list[float] = []
    for number in range(rounds + 1):
        say(f"relay, round {number} of {rounds}: {events:,} events" + (" (warm-up)" if number == 0 else ""))
        _write(conn, events)
        before = _log_end(conn)
        rate = _carry(definition, conn, events, workers)
        if number > 0:
            rates.append(rate)
            log.append((_log_end(conn) - before) / events)
    way = f"{workers} workers, exactly once"
    return [
        Figure(WORK, way, tuple(rates), "events/s", more_is_better=True, reference=False),
        Figure(WORK, way, tuple(log), "B of WAL/event", more_is_better=False, reference=False),
    ]


def _carry(definition: Definition, conn: psycopg.Connection[Any], events: int, workers: int) -> float:
    settings = relay.Settings(workers=workers, until_empty=True)
    stop, waiter = threading.Event(), Waiter()
    work = threading.Thread(
        target=lambda: relay.run(definition, settings, say=lambda _: None, stop=stop, waiter=waiter)
    )
    work.start()
    began = counted = 0.0
    first = events
    while (left := _left(conn)) > 0 and work.is_alive():
        if not began and left < events:
            began, first = time.monotonic(), left
        time.sleep(POLL_SECONDS)
        counted = time.monotonic()
    work.join()
    return first / max(counted - began, POLL_SECONDS)


def _left(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("SELECT count(*) FROM public.outbox").fetchone()
    return int(row[0]) if row else 0


def _log_end(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchone()
    return int(row[0]) if row else 0
