"""Leases, transactions and notifications of the durable inbox on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest

from durable_lab import Lab, finish, new_inbox, running_workers, write_effect
from forms import sized
from outbox_consumers import Event, Skip
from outbox_consumers.durable import worker
from outbox_consumers.durable.queue import JobQueue
from outbox_consumers.loop.outage import Clock
from waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.stack

SESSIONS = sized(20, 300)


# -- Leases --------------------------------------------------------------------------------------------


def test_a_lost_lease_fences_by_token_alone(lab: Lab) -> None:
    """Even if the session of the dead worker cannot be terminated: its statements match no row."""
    lab.add_jobs(1)
    queue = JobQueue("billing", "inbox", 0)
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        (one,), (two,) = conn.execute(
            "INSERT INTO inbox_worker (consumer, name, alive_until, backend)"
            " VALUES ('billing', 'one', 'infinity', 0), ('billing', 'two', 'infinity', 0) RETURNING id"
        ).fetchall()
        with conn.transaction():
            queue.sort_new(conn)
        [before] = queue.take(conn, one, 10)
        assert queue.take(conn, two, 10) == []
        assert queue.give_back(conn, one, [before]) == 1
        [now] = queue.take(conn, two, 10)
        assert now.token == before.token + 1
        assert queue.finish(conn, one, [before]) == 0
        assert not queue.fail(conn, one, before, 1, "x", 0)
        assert not queue.mark_dead(conn, one, before, 1, "x")
        assert queue.give_back(conn, one, [before]) == 0
        assert queue.finish(conn, two, [now]) == 1
        assert queue.finish(conn, two, [now]) == 0
        assert queue.take(conn, 0, 10) == []


@pytest.mark.slow
def test_a_job_that_kills_its_workers_becomes_dead(lab: Lab) -> None:
    """The other jobs of these workers do not count an attempt."""
    lab.add_jobs(20, keys=20)
    for _ in range(3):  # after the first time it is unknown which job was the cause
        assert lab.worker(kills_at=5, max_attempts=2).exit_code() == -signal.SIGKILL
        lab.expire_leases()
    survivor = lab.worker(kills_at=5, max_attempts=2)
    until(lambda: lab.left() == 0)
    assert survivor.stop() == 0, survivor.log_text()
    with psycopg.connect(lab.dsn) as conn:
        [job] = new_inbox(lab.dsn).dead(conn)
    assert (job.event.data["n"], job.attempts, job.error) == (5, 2, "its worker died each time")
    assert sorted(lab.effects()) == [n for n in range(20) if n != 5]


def test_jobs_behind_a_slow_one_are_given_to_other_workers(lab: Lab) -> None:
    durable, slow = new_inbox(lab.dsn), threading.Event()

    @durable.handler("Work")
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        if event.data["n"] == 7:
            assert slow.wait(2 * PATIENCE_SECONDS)
        write_effect(conn, event)

    lab.add_jobs(40, keys=40)
    with running_workers(durable, workers=2):
        until(lambda: len(lab.effects()) == 39)
        slow.set()
        until(lambda: lab.left() == 0)
    lab.assert_applied_once_in_order()


def test_quick_handlers_share_transactions_until_one_fails(lab: Lab) -> None:
    durable = new_inbox(lab.dsn, lease=3600)
    durable._time = Clock(lambda: 1.0, time.sleep, random.random)  # by this clock all calls are quick

    @durable.handler("Work", together=True, max_attempts=2)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)
        number = event.data["n"]
        if number % 50 == 20:
            conn.execute("SELECT 1/0")
        if number % 50 == 30 and event.attempt == 1:
            with suppress(psycopg.Error):
                conn.execute("SELECT 1/0")
        if number % 50 == 40:
            raise Skip("enough")

    lab.add_jobs(600, keys=30)
    finish(lab, durable)
    with psycopg.connect(lab.dsn) as conn:
        dead = {job.event.data["n"] for job in durable.dead(conn)}
    assert dead == {n for n in range(600) if n % 50 == 20}
    lab.job_ids = [one for n, one in enumerate(lab.job_ids) if n not in dead]
    lab.assert_applied_once_in_order()
    [(transactions,)] = lab.query("SELECT count(DISTINCT xmin::text) FROM effect")
    assert transactions < 400


def test_a_handler_that_only_waits_holds_no_transaction(lab: Lab) -> None:
    durable, states = new_inbox(lab.dsn), []

    @durable.handler("Work")
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        look, pid = "SELECT state FROM pg_stat_activity WHERE pid = %s", conn.info.backend_pid
        until(lambda: lab.query(look, pid) == [("idle",)])
        states.append("idle")
        with conn.transaction():
            write_effect(conn, event)
        states.append(lab.query(look, pid)[0][0])

    lab.add_jobs(1)
    finish(lab, durable)
    assert states == ["idle", "idle in transaction"]
    lab.assert_applied_once_in_order()


def test_a_transaction_block_in_a_handler_is_a_savepoint(lab: Lab) -> None:
    """Also as the first statement of the handler: a later failure rolls it back."""
    durable = new_inbox(lab.dsn)

    @durable.handler("Work")
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        with conn.transaction():
            write_effect(conn, event)
        if event.attempt == 1:
            raise RuntimeError("after the block")

    lab.add_jobs(3)
    finish(lab, durable)
    lab.assert_applied_once_in_order()


def test_an_asynchronous_handler(lab: Lab) -> None:
    durable = new_inbox(lab.dsn)

    @durable.handler("Work")
    async def work(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        async with conn.transaction():
            await conn.execute(
                "INSERT INTO effect (event_id, key, n) VALUES (%s, %s, %s)",
                (event.id, event.key, event.data["n"]),
            )
        await asyncio.sleep(0)
        if event.attempt == 1:
            raise RuntimeError("after the block")

    lab.add_jobs(3)
    finish(lab, durable)
    lab.assert_applied_once_in_order()


# -- Notifications, retention, repair ------------------------------------------------------------------


@pytest.mark.parametrize("table", ["inbox", "public.inbox"])
def test_a_new_job_wakes_a_worker_at_once(lab: Lab, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    monkeypatch.setattr(worker, "POLL_SECONDS", 3600)
    durable = lab.inbox(table=table)
    with running_workers(durable):
        for n in range(3):
            until(lambda: lab.query("SELECT count(*) FROM inbox_worker") == [(1,)])
            lab.add_jobs(1)
            until(partial(done, lab, n + 1))


def done(lab: Lab, count: int) -> bool:
    return len(lab.effects()) == count


def test_polling_finds_jobs_added_without_a_notification(lab: Lab) -> None:
    with running_workers(lab.inbox()), psycopg.connect(lab.dsn, autocommit=True) as conn:
        until(lambda: lab.query("SELECT count(*) FROM inbox_worker") == [(1,)])
        lab.inbox(notify=False).put(conn, "Work", {"n": 1})
        until(lambda: lab.effects() == [1])


def test_done_jobs_are_kept_for_the_configured_time(lab: Lab) -> None:
    durable = lab.inbox(keep=3600)
    lab.add_jobs(30)
    with running_workers(durable):
        until(lambda: lab.left() == 0)
        assert lab.states() == {"done": 30}
        lab.run("UPDATE inbox_job SET ended_at = ended_at - interval '2 hours' WHERE position % 2 = 0")
        until(lambda: lab.states() == {"done": 15})
    lab.assert_applied_once_in_order()


def test_queues_whose_head_was_deleted_are_repaired(lab: Lab) -> None:
    durable = lab.inbox()
    lab.add_jobs(40, keys=4)
    with psycopg.connect(lab.dsn) as conn:
        JobQueue("billing", "inbox", 0).sort_new(conn)
    lab.run("DELETE FROM inbox_job WHERE state = 'ready' AND queue IS NOT NULL")
    with psycopg.connect(lab.dsn) as conn:
        assert durable.mend(conn) == 4
    finish(lab, durable)
    assert len(lab.effects()) == 36


@pytest.mark.slow
def test_sessions_ended_at_any_moment(lab: Lab) -> None:
    """Also during COMMIT, whose outcome is then unknown: the worker finds it out."""
    durable, ended = lab.inbox(), 0
    with running_workers(durable, workers=3):
        until(lambda: lab.query("SELECT count(*) FROM inbox_worker") == [(3,)], "the workers have begun")
        while ended < SESSIONS:
            if lab.left() < 100:
                lab.add_jobs(200, keys=40)
            [(count,)] = lab.query(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'outbox %'"
                " AND pid <> pg_backend_pid() AND random() < 0.15"
            )
            ended += count
            time.sleep(0.05)
        until(lambda: lab.left() == 0)
    print(f"{ended} sessions ended, {len(lab.job_ids)} jobs")
    lab.assert_applied_once_in_order()
    assert lab.states() == {}
