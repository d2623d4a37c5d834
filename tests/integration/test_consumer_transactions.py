"""What a handler, another session or the server can do to the transaction; nothing may be lost by it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import psycopg
import pytest

from fix_consumer import Bench, running, write_effect
from outbox_consumers import Event
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack


def test_a_swallowed_database_error_is_noticed_and_nothing_is_lost(bench: Bench) -> None:
    """PostgreSQL answers COMMIT with ROLLBACK then, and psycopg does not report it."""
    app = bench.app()
    swallow = True

    @app.handler("Placed", pipeline=False)
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if swallow and event.data["n"] == 3:
            with contextlib.suppress(psycopg.Error):
                conn.execute("SELECT 1 / 0")

    for n in range(6):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.failures >= 2)
        assert bench.effects() == [0, 1, 2]
        swallow = False
        until(lambda: app.counters.processed == 6)
    assert bench.effects() == list(range(6))


def test_an_error_swallowed_in_pipeline_mode_is_noticed_too(bench: Bench) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if event.data["n"] == 3 and event.attempt == 1:
            with contextlib.suppress(psycopg.Error):
                conn.execute("SELECT 1 / 0").fetchone()

    for n in range(6):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 6)
    assert bench.effects() == list(range(6))
    assert app.counters.failures == 1


def test_statements_that_an_aborted_pipeline_did_not_prepare_are_not_executed_by_name(bench: Bench) -> None:
    """Psycopg prepares what it has seen five times, here behind the error, where the server does nothing."""
    app = bench.app(batch_size=20)

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] % 20 == 3 and event.attempt == 1:
            conn.execute("SELECT 1 / 0")
        # A statement of its own for each batch of 20, which is prepared at its sixth event.
        conn.execute(
            b"INSERT INTO effect (event_id, consumer, key, n) VALUES (%%s, 'billing', %%s, %%s) -- %d"
            % (event.data["n"] // 20),
            (event.id, event.key, event.data["n"]),
        )

    with running(app):
        for first in range(0, 60, 20):  # psycopg minds the first ROLLBACK of a session only
            for n in range(first, first + 20):
                bench.send({"n": n}, partition=0)
            bench.flush()
            until(lambda: app.counters.processed == len(bench.sent))
    assert bench.effects() == list(range(60))
    assert app.counters.failures == 3


def test_a_table_altered_under_a_prepared_statement_costs_no_attempt(bench: Bench) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        conn.execute("SELECT * FROM effect WHERE n = %s", (event.data["n"],)).fetchall()
        write_effect(conn, event)

    with running(app):
        for round in range(3):
            for n in range(10):
                bench.send({"n": 10 * round + n}, partition=0)
            bench.flush()
            until(lambda: app.counters.processed == len(bench.sent))
            bench.run(f"ALTER TABLE effect ADD COLUMN other{round} int")
    assert bench.effects() == list(range(30))
    assert app.counters.failures == 0
    assert app.counters.transient >= 1


@pytest.mark.parametrize("ending", ["commit()", "rollback()", "COMMIT", " rollback ;", "END"])
def test_a_handler_cannot_end_the_transaction(bench: Bench, ending: str) -> None:
    app = bench.app()
    bad = True

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if bad and event.data["n"] == 2:
            if ending == "commit()":
                conn.commit()
            elif ending == "rollback()":
                conn.rollback()
            else:
                conn.execute(ending.encode())

    for n in range(5):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.failures >= 2)
        assert bench.effects() == [0, 1]
        bad = False
        until(lambda: app.counters.processed == 5)
    bench.applied_once()


def test_a_commit_hidden_in_a_script_loses_nothing(bench: Bench) -> None:
    """It commits the claims of the events behind it; those are given back before anybody misses them."""
    app = bench.app()

    @app.handler("Placed", pipeline=False)
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if event.data["n"] == 2:
            conn.execute("SELECT 1; COMMIT")

    for n in range(5):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed + app.counters.duplicates >= 5)
    bench.applied_once()


def test_a_savepoint_of_the_handler_works(bench: Bench) -> None:
    app = bench.app()

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        try:
            with conn.transaction():
                conn.execute("INSERT INTO effect (n) VALUES (-1)")
                conn.execute("SELECT 1 / 0")
        except psycopg.errors.DivisionByZero:
            pass

    for n in range(5):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 5)
    assert bench.effects() == list(range(5))


def test_a_handler_that_needs_answers_at_once_switches_pipelines_off(bench: Bench) -> None:
    """COPY cannot run in pipeline mode: the batches fail, the events alone do not."""
    app = bench.app(batch_size=5)

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        with conn.cursor().copy("COPY effect (event_id, consumer, key, n) FROM STDIN") as copy:
            copy.write_row((event.id, "billing", event.key, event.data["n"]))

    for n in range(50):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 50)
    assert app.counters.failures == 0
    assert app.counters.singles == 15
    bench.applied_once()


def test_a_deferred_constraint_that_fails_at_commit_is_found_and_blamed_on_its_event(bench: Bench) -> None:
    bench.run("ALTER TABLE effect ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
    bench.run("INSERT INTO effect (n) VALUES (2)")
    for n in range(5):
        bench.send({"n": n}, partition=n % 2)
    bench.flush()
    with running(bench.applying()) as app:
        until(lambda: app.counters.failures >= 2 and app.counters.processed == 3)
        bench.run("DELETE FROM effect WHERE event_id IS NULL")
        until(lambda: app.counters.processed == 5)
    bench.applied_once()


def test_the_connection_is_lost_in_the_middle_of_a_batch(bench: Bench) -> None:
    """Also in the middle of COMMIT: whether it happened is for the inbox to say, at the next try."""
    bench.send_many(3000)
    app = bench.applying(batch_size=100)
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'outbox consumer%'"
    )
    killed = 0
    with running(app):
        while app.counters.processed + app.counters.duplicates < 2500 and killed < 8:
            before = app.counters.batches
            until(lambda before=before: app.counters.batches > before + 1)  # type: ignore[misc]
            killed += len(bench.query(kill))
        until(lambda: sum(1 for _ in bench.effects()) == 3000)
    assert killed > 2
    assert app.counters.transient > 0
    assert app.counters.failures == 0
    bench.applied_once()


def test_the_consumer_waits_for_a_database_that_refuses_connections(bench: Bench) -> None:
    app = bench.applying()
    name = bench.database.name
    bench.send({"n": 0})
    bench.flush()
    with running(app), psycopg.connect(bench.server.conninfo(), autocommit=True) as admin:
        until(lambda: app.counters.processed == 1)
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        for n in range(1, 10):
            bench.send({"n": n}, partition=n % 3)
        bench.flush()
        until(lambda: app.counters.transient >= 2)
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
        until(lambda: app.counters.processed == 10)
    bench.applied_once()


def test_a_lock_held_by_another_consumer_is_waited_for_and_then_tried_again(bench: Bench) -> None:
    """A zombie with an open transaction holds the claim. When it commits, its work is not done twice."""
    event_id = bench.send({"n": 1}, partition=0)
    bench.send({"n": 2}, partition=1)
    bench.flush()
    app = bench.applying(lock_timeout=0.2)
    with psycopg.connect(bench.dsn) as zombie:
        zombie.execute("INSERT INTO inbox (event_id, consumer) VALUES (%s, 'billing')", (event_id,))
        zombie.execute("INSERT INTO effect (event_id, consumer, n) VALUES (%s, 'billing', 1)", (event_id,))
        with running(app):
            until(lambda: app.counters.transient >= 3)
            until(lambda: bench.effects() == [2])  # the other partition goes on
            zombie.commit()
            until(lambda: app.counters.duplicates == 1)
    bench.applied_once()


def test_a_frozen_zombie_is_ended_by_the_server_and_the_next_one_goes_on(bench: Bench) -> None:
    bench.send({"n": 1}, partition=0)
    bench.flush()
    frozen, wake = threading.Event(), threading.Event()
    zombie = bench.app(idle_timeout=0.5)

    @zombie.handler("Placed", pipeline=False)
    def stuck(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        if not wake.is_set():
            frozen.set()
            wake.wait(PATIENCE_SECONDS)

    with running(zombie):
        assert frozen.wait(PATIENCE_SECONDS)
        heir = bench.applying(kafka={"group.id": f"{bench.topic}.heir"})
        with running(heir):
            until(lambda: heir.counters.processed == 1)
        wake.set()
        until(lambda: zombie.counters.duplicates == 1)
    assert zombie.counters.transient >= 1  # 25P03, an InternalError to psycopg
    bench.applied_once()


def test_two_consumers_fed_the_same_events_in_opposite_order_never_deadlock(bench: Bench) -> None:
    """The claim sorts the ids, so overlapping batches wait for each other instead of dying."""
    ids = [bench.send({"n": n}, partition=0) for n in range(400)]
    for n, event_id in reversed(list(enumerate(ids))):
        bench.send({"n": n}, id=event_id, partition=1)
    bench.flush()
    apps = [bench.applying(kafka={"group.id": f"{bench.topic}.{i}"}, batch_size=50) for i in range(3)]
    with running(apps[0]), running(apps[1]), running(apps[2]):
        until(lambda: all(a.counters.processed + a.counters.duplicates == 800 for a in apps))
    assert sum(app.counters.transient + app.counters.failures for app in apps) == 0
    bench.applied_once()


def test_a_deadlock_between_handlers_is_retried(bench: Bench) -> None:
    bench.run(
        "CREATE TABLE account (id int PRIMARY KEY, balance int); INSERT INTO account VALUES (1,0), (2,0)"
    )
    for n in range(20):
        bench.send({"n": n}, partition=n % 2)
    bench.flush()
    apps = [bench.app(kafka={"group.id": f"{bench.topic}.g"}, batch_size=20) for _ in range(2)]
    for app in apps:

        @app.handler("Placed", pipeline=False)
        def placed(conn: psycopg.Connection[Any], event: Event) -> None:
            for account in (1, 2) if event.position[1] else (2, 1):
                conn.execute("UPDATE account SET balance = balance + 1 WHERE id = %s", (account,))
                conn.execute("SELECT pg_sleep(0.02)")
            write_effect(conn, event)

    with running(apps[0]), running(apps[1]):
        until(lambda: sum(app.counters.processed for app in apps) == 20)
    assert bench.query("SELECT balance FROM account") == [(20,), (20,)]
    assert sum(app.counters.failures for app in apps) == 0
    bench.applied_once()
