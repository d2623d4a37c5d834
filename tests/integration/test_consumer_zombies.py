"""Members that are frozen, and partitions that leave and come back while they wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_consumer import Bench, running, write_effect
from outbox_consumers import Event, RetryStrategy
from waiting import until

pytestmark = pytest.mark.stack

APP = """
import os
from outbox_consumers import Consumer

TOPIC = os.environ["BENCH_TOPIC"]
app = Consumer(
    "billing",
    kafka={
        "bootstrap.servers": os.environ["BENCH_KAFKA"],
        "group.id": TOPIC,
        "session.timeout.ms": 1500,
        "heartbeat.interval.ms": 300,
    },
    dsn=os.environ["BENCH_DSN"],
    topics=[TOPIC],
    batch_size=50,
    idle_timeout=1,
)

@app.handler("Placed")
def placed(conn, event):
    conn.execute("SELECT pg_sleep(0.001)")
    conn.execute(
        "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)",
        (event.id, event.key, event.data["n"]),
    )
"""


def test_members_frozen_for_longer_than_their_session_lose_and_repeat_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "frozen_app.py").write_text(APP)
    environ = {"BENCH_KAFKA": bench.server.kafka, "BENCH_TOPIC": bench.topic, "BENCH_DSN": bench.dsn}
    command = [str(Path(sys.executable).parent / "outboxctl"), "consume", "frozen_app:app"]
    children = [
        subprocess.Popen(command, cwd=tmp_path, env=os.environ | environ, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    try:
        bench.send_many(500)
        until(lambda: len(bench.effects()) > 100)
        for number in range(4):
            victim = children[number % 2]
            victim.send_signal(signal.SIGSTOP)
            bench.send_many(300)
            time.sleep(2.5)
            victim.send_signal(signal.SIGCONT)
        until(lambda: len(bench.effects()) >= len(bench.sent))
    finally:
        for child in children:
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()
    bench.applied_once()
    # Order per key, by sending: the numbers start anew with each round.
    sent = {event_id: place for place, event_id in enumerate(bench.sent)}
    rows = bench.query("SELECT key, array_agg(event_id ORDER BY place) FROM effect GROUP BY key")
    for _, ids in rows:
        places = [sent[event_id] for event_id in ids]
        assert places == sorted(places)


def test_a_paused_partition_that_leaves_and_comes_back_goes_on(bench: Bench) -> None:
    """The client keeps a partition paused over a rebalance, without telling."""
    settings = {"group.id": f"{bench.topic}.g", "partition.assignment.strategy": "range"}
    broken = True
    app = bench.app(batch_size=10, kafka=settings, retry=RetryStrategy(wait=0.3, exponential_wait=0))

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if broken:
            raise RuntimeError("broken")
        write_effect(conn, event)

    failing_too = bench.app(batch_size=10, kafka=settings)

    @failing_too.handler("Placed")
    def failed(conn: psycopg.Connection[Any], event: Event) -> None:
        raise RuntimeError("broken")

    for n in range(150):
        bench.send({"n": n}, partition=n % 3)
    bench.flush()
    with running(app):
        until(lambda: app.counters.failures > 3 and app.health().held > 30)
        revoked = app.counters.revoked
        with running(failing_too):
            until(lambda: app.counters.revoked > revoked)
        until(lambda: app.counters.revoked > revoked + 3)
        broken = False
        until(lambda: app.counters.processed == 150)
    bench.applied_once()


def test_waiting_for_a_retry_holds_no_transaction(bench: Bench) -> None:
    app = bench.app(retry=RetryStrategy(wait=3, exponential_wait=0, jitter=0))

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        raise RuntimeError("broken")

    bench.send_many(1)
    states = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'outbox consumer%' AND clock_timestamp() - xact_start > interval '300 ms'"
    )
    with running(app):
        until(lambda: app.counters.failures == 1)
        for _ in range(20):
            assert bench.query(states) == [(0,)]
            time.sleep(0.05)
