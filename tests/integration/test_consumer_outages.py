"""A consumer whose database is away, is a standby, or that is told to stop in the middle of much work."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fix_consumer import Bench, running, write_effect
from outbox_consumers import Event
from outbox_consumers.failures.process_crashes import ProcessCrashes
from waiting import until

pytestmark = pytest.mark.stack

ENDS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name LIKE %s"
)


def test_the_consumer_waits_for_a_server_that_became_a_standby(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a consumer that suspects its next events, since a process of it has died."""
    monkeypatch.setattr(ProcessCrashes, "find_crashed", lambda self, _: setattr(self, "suspects", 1000))
    name = sql.Identifier(bench.database.name)
    bench.send_many(5)
    bench.flush()
    with running(bench.applying()) as app, bench.database.connect() as conn:
        until(lambda: len(bench.effects()) == 5, "the first events")
        conn.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
        conn.execute(ENDS, (bench.database.name, "outbox consumer%"))
        bench.send_many(5)
        bench.flush()
        until(lambda: app.counters.transient >= 3, "it meets a server that takes no effects")
        conn.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
        until(lambda: len(bench.effects()) == 10, "every event")
    bench.applied_once()


@pytest.mark.parametrize("piped", [True, False])
def test_a_stop_ends_a_long_batch_between_two_handlers(bench: Bench, piped: bool) -> None:
    """What was done stays, the rest is left to Kafka: nobody waits for the end of the batch."""
    app = bench.app()

    @app.handler("Placed", pipeline=piped)
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        time.sleep(0.1)
        write_effect(conn, event)
        if event.data["n"] == 3:
            app.stop()

    for n in range(3000):
        bench.send({"n": n}, partition=0)
    bench.flush()
    app.run()
    done = bench.effects()
    assert done[-1] < 10
    with running(bench.applying()):
        until(lambda: len(bench.effects()) == 3000, "every event")
    bench.applied_once()


def test_a_stop_ends_the_work_on_parked_events(bench: Bench) -> None:
    app, mended = bench.app(), threading.Event()

    @app.handler("Placed", on_failure="park")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if not mended.is_set():
            raise ValueError("not yet")
        time.sleep(0.1)
        write_effect(conn, event)
        app.stop()

    for n in range(300):
        bench.send({"n": n}, key=f"k{n}")
    bench.flush()
    with running(app):
        until(lambda: app.counters.parked == 300, "every event is parked")
        bench.run("UPDATE inbox_parked SET due_at = now()")
        mended.set()
        until(lambda: len(bench.effects()) > 0, "the first parked event")
    assert len(bench.effects()) < 10
