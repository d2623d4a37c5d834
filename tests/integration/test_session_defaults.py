"""What role, database or environment set for a session changes nothing that the product relies on."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from durable_lab import Lab, finish, new_inbox, write_effect
from fix_consumer import Bench, running
from fix_consumer import write_effect as write_bench_effect
from fix_relay import Relayed
from outbox_connectors.definition import Secret
from outbox_consumers import Event
from outbox_consumers.durable.lease import _connect as lease_session
from outbox_consumers.durable.session import WorkerSession
from outbox_consumers.handlers.session import ConsumerSession, Database
from outbox_pipeline import outbox
from outbox_pipeline.operations import cutover
from outbox_pipeline.servers import postgres, slots
from outbox_pipeline.watch.sample import PostgresSample
from outbox_pipeline.watch.sampling import Sampler
from waiting import until

pytestmark = pytest.mark.stack

# Sessions that begin from here on have them.
HOSTILE = {
    "default_transaction_isolation": "serializable",
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "idle_session_timeout": "700ms",
    "statement_timeout": "60s",
    "standard_conforming_strings": "on",
    "xmlbinary": "hex",
}


def spoil(conn: psycopg.Connection[Any]) -> None:
    """Let the database greet new sessions with unusual settings."""
    name = sql.Identifier(conn.info.dbname)
    for setting, value in HOSTILE.items():
        statement = sql.SQL("ALTER DATABASE {} SET {} = {}")
        conn.execute(statement.format(name, sql.Identifier(setting), sql.Literal(value)))


def holder(conn: psycopg.Connection[Any], pid: int) -> bool:
    """Tell whether a session waits for a lock."""
    query = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    row = conn.execute(query, (pid,)).fetchone()
    return bool(row and row[0])


def test_a_fence_sees_what_was_committed_while_it_waited(relayed: Relayed) -> None:
    """With a snapshot from before, rows would be behind the fence and before the slot: nobody's."""
    definition = relayed.definition
    with relayed.connect() as writer, relayed.connect() as eye:
        spoil(eye)
        eye.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (definition.postgres.slot,))
        with postgres.as_admin(definition, "test") as conn, ThreadPoolExecutor(1) as aside:
            with writer.transaction():
                writer.execute("LOCK TABLE outbox IN ROW EXCLUSIVE MODE")
                placed = aside.submit(cutover.establish, conn, definition)
                until(lambda: holder(eye, conn.info.backend_pid), "the fence waits for the writer")
                outbox.add_many(writer, relayed.events([f"k{n}" for n in range(5)]))
            last = placed.result()
        row = eye.execute("SELECT max(position), count(*) FROM outbox").fetchone()
        eye.execute("SELECT pg_drop_replication_slot(%s)", (definition.postgres.slot,))
    assert row == (last, 5)


def test_a_relay_works_in_an_unusual_session(relayed: Relayed) -> None:
    relayed.write(200)
    with relayed.connect() as conn:
        spoil(conn)
    relayed.until_empty("--workers", "2")
    relayed.write(50)
    relayed.until_empty()
    assert relayed.ledger().clean


def test_an_inactive_slot_can_be_read(relayed: Relayed) -> None:
    """PostgreSQL 17 and later say since when: a date, which psycopg reads in ISO style only."""
    name = relayed.definition.postgres.slot
    with relayed.connect() as conn:
        spoil(conn)
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    with postgres.as_admin(relayed.definition, "test") as conn:
        found = slots.read(conn, name)
        time.sleep(1.5)  # twice the time after which the database ends an idle session
        conn.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    assert found is not None
    assert not found.active


def test_the_watch_keeps_its_session_between_two_looks(relayed: Relayed) -> None:
    with relayed.connect() as conn:
        spoil(conn)
    with closing(Sampler.of(relayed.definition, only_postgres=True)) as sampler:
        for _ in range(2):
            assert isinstance(sampler.take().postgres, PostgresSample)
            time.sleep(1.5)


def test_a_consumer_works_in_an_unusual_session(bench: Bench) -> None:
    app = bench.app()
    failed: list[uuid.UUID] = []

    @app.handler("Placed", on_failure="park")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] == 3 and not failed:
            failed.append(event.id)
            raise ValueError("once")
        write_bench_effect(conn, event)

    with bench.database.connect() as conn:
        spoil(conn)
    bench.send_many(40)
    bench.flush()
    with running(app):
        until(lambda: len(bench.effects()) == 40, "every event")
    assert failed
    bench.applied_once()
    bench.applied_in_order()


def test_a_job_may_take_longer_than_a_session_may_be_idle(lab: Lab) -> None:
    durable = new_inbox(lab.dsn)
    begun: list[uuid.UUID] = []

    @durable.handler("Work")
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        begun.append(event.id)
        time.sleep(1.5)
        write_effect(conn, event)

    lab.add_jobs(1)
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        spoil(conn)
    finish(lab, durable)
    assert len(begun) == 1
    lab.assert_applied_once_in_order()


SILENT: dict[str, Callable[[Lab], psycopg.Connection[Any]]] = {
    "command": lambda lab: postgres.connect(Secret(lab.dsn), application_name="test"),
    "consumer": lambda lab: ConsumerSession(where(lab)).connection(),
    "worker": lambda lab: WorkerSession(where(lab)).connection(),
    "lease": lambda lab: lease_session(where(lab)),
}


def where(lab: Lab) -> Database:
    return Database(Secret(lab.dsn), "work", "inbox")


@pytest.mark.parametrize("kind", SILENT)
def test_a_silent_host_is_given_up(lab: Lab, kind: str) -> None:
    with (
        closing(SILENT[kind](lab)) as conn,
        socket.fromfd(conn.fileno(), socket.AF_INET, socket.SOCK_STREAM) as found,
    ):
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10
