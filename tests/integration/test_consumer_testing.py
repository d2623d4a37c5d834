"""The helpers for users' tests, used as users would; and the crash matrix on our own consumer."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from uuid_utils.compat import uuid7

from fix_consumer import Bench, write_effect
from outbox_consumers import Event, Reject, durable
from outbox_consumers.durable import Job
from outbox_consumers.failures import dead_letter
from outbox_consumers.inbox import schema
from outbox_consumers.testing import JOB_STEPS, STEPS, crash_matrix
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack
pytest_plugins = ["outbox_consumers.pytest_plugin"]


@pytest.fixture
def outbox_dsn(bench: Bench) -> str:
    return bench.dsn


def test_events_run_through_the_handlers_without_kafka(
    bench: Bench, outbox_connection: psycopg.Connection[Any], outbox_event: Callable[..., Event]
) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if event.data["n"] == 2:
            raise Reject("never")
        if event.data["n"] == 3:
            raise RuntimeError("broken")

    @app.handler("Cancelled", on_failure="park")
    async def cancelled(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        await conn.execute("SELECT 1 / 0")

    twice = outbox_event("Placed", {"n": 1})
    result = app.test(
        [
            twice,
            twice,
            outbox_event("Placed", {"n": 2}),
            outbox_event("Placed", {"n": 3}),
            outbox_event("Cancelled", key="a"),
            outbox_event("Cancelled", key="a"),
            outbox_event("Unheard"),
        ],
        outbox_connection,
    )
    assert (result.processed, result.duplicates, result.dead, result.failed) == (1, 1, 1, 1)
    assert (result.parked, result.skipped) == (2, 1)
    assert [type(e).__name__ for e in result.errors] == ["Reject", "RuntimeError", "DivisionByZero"]
    assert outbox_connection.execute("SELECT n FROM effect").fetchall() == [(1,)]
    assert bench.effects() == []  # nothing was committed


def test_an_error_that_a_handler_catches_fails_in_a_trial_too(
    bench: Bench, outbox_connection: psycopg.Connection[Any], outbox_event: Callable[..., Event]
) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        try:
            conn.execute("SELECT 1 / 0")
        except psycopg.Error:
            return

    assert app.test([outbox_event("Placed")], outbox_connection).failed == 1


APP = """
import os
from outbox_consumers import Consumer, Reject, RetryStrategy

TOPIC = os.environ["BENCH_TOPIC"]
app = Consumer(
    "billing",
    kafka={
        "bootstrap.servers": os.environ["BENCH_KAFKA"],
        "group.id": TOPIC,
        "group.instance.id": "one",
        "auto.commit.interval.ms": 100,
    },
    dsn=os.environ["BENCH_DSN"],
    topics=[TOPIC],
    batch_size=40,
    retry=RetryStrategy(wait=0.05, exponential_wait=0),
)
INSERT = "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)"

def row(event):
    return event.id, event.key, event.data["n"]

@app.handler("Single", on_failure="park")
def single(conn, event):
    conn.execute(INSERT, row(event))
    if event.data["n"] % 40 == 5 and event.attempt < 3:
        raise RuntimeError("not yet")
    if event.data["n"] % 40 == 6:
        raise Reject("never")

@app.batch_handler("Batch")
def batch(conn, events):
    with conn.cursor() as cursor:
        cursor.executemany(INSERT, [row(event) for event in events])
"""


@pytest.mark.slow
def test_a_kill_after_any_step_loses_and_repeats_nothing(bench: Bench, tmp_path: Path) -> None:
    """Single, batch, parked and dead letters, each killed after every step of the loop."""
    (tmp_path / "matrix_app.py").write_text(APP)
    rejected: set[uuid.UUID] = set()
    count = 0

    def send_more(step: str) -> None:
        nonlocal count
        for _ in range(80):
            kind = "Batch" if count % 80 > 60 else "Single"
            event_id = bench.send({"n": count}, kind=kind, key=str(count % 7))
            if kind == "Single" and count % 40 == 6:
                rejected.add(event_id)
                bench.sent.remove(event_id)
            count += 1
        bench.flush()

    def done() -> bool:
        parked = bench.query("SELECT count(*) FROM inbox_parked")[0][0]
        return parked == 0 and len(bench.effects()) >= len(bench.sent)

    environ = bench.environ
    crashes = crash_matrix(
        "matrix_app:app",
        done,
        environ=environ,
        folder=tmp_path,
        before_each=send_more,
        patience=PATIENCE_SECONDS,
    )
    assert [crash.step for crash in crashes if crash.killed] == list(STEPS)
    bench.applied_once()
    with bench.database.connect() as conn:
        letters = [
            letter["event_id"] for letter in dead_letter.find(conn, dead_letter.DeadLetterFilter(), "inbox")
        ]
    assert sorted(letters) == sorted(rejected)
    bench.applied_in_order()


JOBS = """
import os

from outbox_consumers import Reject, RetryStrategy
from outbox_consumers.durable import DurableInbox

TOPIC = os.environ["BENCH_TOPIC"]
app = DurableInbox(
    "billing",
    dsn=os.environ["BENCH_DSN"],
    kafka={
        "bootstrap.servers": os.environ["BENCH_KAFKA"],
        "group.id": TOPIC,
        "group.instance.id": "one",
        "auto.commit.interval.ms": 100,
    },
    topics=[TOPIC],
    batch_size=40,
    lease=2,
    retry=RetryStrategy(5, wait=0.05, exponential_wait=0),
)
INSERT = "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)"


@app.handler("Placed")
def placed(conn, event):
    conn.execute(INSERT, (event.id, event.key, event.data["n"]))
    if event.data["n"] % 40 == 6:
        raise Reject("never")
    if event.data["n"] % 40 == 7 and event.attempt == 1:
        raise RuntimeError("not yet")
"""


@pytest.mark.slow
def test_a_kill_after_any_step_of_a_durable_inbox_loses_and_repeats_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    """The receiver is killed after each of its steps, then a worker after each of its own."""
    (tmp_path / "matrix_jobs.py").write_text(JOBS)
    with bench.database.connect() as conn:
        schema.apply(conn, durable.steps())
    count = 0

    def send_more(step: str) -> None:
        """Give a receiver events, a worker jobs: how many the receivers left it is a matter of chance."""
        nonlocal count
        jobs: list[Job] = []
        for n in range(count, count + 80):
            if step in JOB_STEPS:
                jobs.append(Job("Placed", {"n": n}, key=f"put {n % 7}", id=uuid7()))
                bench.sent += [job.id for job in jobs[-1:] if job.id]
            else:
                bench.send({"n": n}, kind="Placed", key=str(n % 7))
            if n % 40 == 6:
                bench.sent.pop()
        count += 80
        bench.flush()
        with bench.database.connect() as conn:
            durable.DurableInbox("billing", dsn=bench.dsn).put_many(conn, jobs)

    receiving = ("fetched", "claimed", "handled", "about to commit", "committed", "about to store", "stored")
    crashes = crash_matrix(
        "matrix_jobs:app",
        lambda: (
            len(bench.effects()) >= len(bench.sent)
            and not bench.query("SELECT 1 FROM inbox_job WHERE state <> 'dead'")
        ),
        steps=[*receiving, *JOB_STEPS],
        environ=bench.environ,
        folder=tmp_path,
        before_each=send_more,
        patience=PATIENCE_SECONDS,
    )
    assert [crash.step for crash in crashes if crash.killed] == [*receiving, *JOB_STEPS]
    bench.applied_once()
    bench.applied_in_order()
