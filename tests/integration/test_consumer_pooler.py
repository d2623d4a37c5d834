"""A consumer behind PgBouncer in transaction mode: nothing it needs may be left in a server's session."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from durable_lab import Lab, new_inbox
from durable_lab import write_effect as write_job_effect
from fix_consumer import Bench, running, write_effect
from fix_pooler import PGBOUNCER, left_in, pgbouncer
from outbox_consumers import Consumer, Event
from outbox_consumers.errors import SharedSession
from waiting import until

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer here (a package of that name has it)"),
]


@pytest.fixture
def pooled(bench: Bench, tmp_path: Path) -> Iterator[str]:
    """A dsn that leads through PgBouncer to the bench's database."""
    with pgbouncer(bench.dsn, tmp_path) as dsn:
        yield dsn


def _more_batches(apps: list[Consumer], before: int) -> bool:
    return sum(app.counters.batches for app in apps) > before


def test_members_that_share_two_server_connections_lose_and_repeat_nothing(bench: Bench, pooled: str) -> None:
    settings = {"group.id": f"{bench.topic}.g"}
    apps = [bench.applying(dsn=pooled, pooler=True, batch_size=20, kafka=settings) for _ in range(3)]
    bench.send_many(600)
    for event_id in random.Random(1).sample(bench.sent, 100):
        bench.send({"n": bench.sent.index(event_id)}, id=event_id)
    bench.flush()
    ended = 0
    with ExitStack() as members:
        for app in apps:
            members.enter_context(running(app))
        while ended < 3:
            before = sum(app.counters.batches for app in apps)
            bench.send_many(50)
            until(partial(_more_batches, apps, before))
            ended += bench.query(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )[0][0]
        until(lambda: sum(app.counters.processed for app in apps) == len(set(bench.sent)))
    bench.applied_once()


def test_settings_of_a_transaction_end_with_it(bench: Bench, pooled: str) -> None:
    app = bench.app(dsn=pooled, pooler=True, lock_timeout=7, idle_timeout=8)
    told: list[tuple[Any, ...] | None] = []

    @app.handler("Placed", pipeline=False)
    async def placed(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        cursor = await conn.execute(
            "SELECT current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),"
            " current_setting('synchronous_commit'), current_setting('transaction_isolation')"
        )
        told.append(await cursor.fetchone())

    bench.run("ALTER ROLE CURRENT_USER IN DATABASE " + bench.database.name + " SET synchronous_commit = off")
    with running(app):
        bench.send_many(20)
        until(lambda: app.counters.processed == 20)
        bench.send_many(20)
        until(lambda: app.counters.processed == 40)
    assert set(told) == {("7s", "8s", "on", "read committed")}
    for _ in range(4):
        with psycopg.connect(pooled) as conn:
            assert conn.execute("SHOW lock_timeout").fetchone() == ("0",)
            assert conn.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


def test_own_loops_work_behind_a_pooler_too(bench: Bench, pooled: str) -> None:
    app = bench.app(dsn=pooled, pooler=True)
    bench.send_many(100)
    with app.batches(max_size=30) as batches:
        for batch in batches:
            with batch.transaction() as (conn, events):
                for event in events:
                    write_effect(conn, event)
            if app.counters.processed == 100:
                app.stop()
    bench.applied_once()


def test_a_consumer_that_was_not_told_of_the_pooler_refuses_it(bench: Bench, pooled: str) -> None:
    app = bench.applying(dsn=pooled)
    before = left_in(pooled)
    for _ in range(3):
        with pytest.raises(SharedSession, match="pooler=True"):
            app.run()
    assert left_in(pooled) == before


def test_a_durable_inbox_refuses_a_pooler(lab: Lab, tmp_path: Path) -> None:
    with pgbouncer(lab.dsn, tmp_path) as dsn:
        durable = new_inbox(dsn)
        durable.handler("Work")(write_job_effect)
        before = left_in(dsn)
        with pytest.raises(SharedSession, match="as DurableInbox needs"):
            durable.work()
        assert left_in(dsn) == before
