"""Asynchronous handlers: the same transaction, the same promise."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from fix_consumer import Bench, running, write_effect
from outbox_consumers import Event, Reject
from waiting import until

pytestmark = pytest.mark.stack

INSERT = "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, 'billing', %s, %s)"


def test_an_asynchronous_handler_works_in_the_claim_s_transaction(bench: Bench) -> None:
    app = bench.app()
    failed: list[int] = []

    @app.handler("Placed")
    async def placed(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        await conn.execute(INSERT, (event.id, event.key, event.data["n"]))
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        async with conn.transaction():
            await (await conn.execute("SELECT 1")).fetchone()
        if event.data["n"] == 7 and len(failed) < 3:
            failed.append(event.attempt)
            raise RuntimeError("not yet")
        if event.data["n"] == 8:
            raise Reject("never")

    bench.send_many(100)
    with running(app):
        until(lambda: app.counters.processed == 99)
    bench.sent.pop(8)
    bench.applied_once()


def test_both_kinds_of_handlers_share_one_batch_in_order(bench: Bench) -> None:
    app = bench.app()

    @app.handler("Placed")
    async def placed(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        await conn.execute(INSERT, (event.id, event.key, event.data["n"]))

    @app.handler("Paid")
    def paid(conn: psycopg.Connection[Any], event: Event) -> None:
        write_effect(conn, event)

    @app.batch_handler("Metered")
    async def metered(conn: psycopg.AsyncConnection[Any], events: Sequence[Event]) -> None:
        async with conn.cursor() as cursor:
            await cursor.executemany(INSERT, [(e.id, e.key, e.data["n"]) for e in events])

    for n in range(300):
        bench.send({"n": n}, kind=("Placed", "Paid", "Metered", "Metered")[n % 4], partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.processed == 300)
    assert app.counters.singles == 0
    assert bench.effects() == list(range(300))


@pytest.mark.parametrize("ending", ["commit", "execute", "swallow"])
def test_an_asynchronous_handler_cannot_lose_anything_either(bench: Bench, ending: str) -> None:
    app = bench.app()
    bad = True

    @app.handler("Placed")
    async def placed(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        await conn.execute(INSERT, (event.id, event.key, event.data["n"]))
        if not bad or event.data["n"] != 2:
            return
        if ending == "commit":
            await conn.commit()
        elif ending == "execute":
            await conn.execute("COMMIT")
        else:
            try:
                await conn.execute("SELECT 1 / 0")
            except psycopg.Error:
                return

    for n in range(5):
        bench.send({"n": n}, partition=0)
    bench.flush()
    with running(app):
        until(lambda: app.counters.failures >= 2)
        assert bench.effects() == [0, 1]
        bad = False
        until(lambda: app.counters.processed == 5)
    bench.applied_once()


def test_the_loop_survives_a_lost_connection(bench: Bench) -> None:
    app = bench.app(batch_size=10)

    @app.handler("Placed")
    async def placed(conn: psycopg.AsyncConnection[Any], event: Event) -> None:
        await conn.execute(INSERT, (event.id, event.key, event.data["n"]))

    bench.send_many(300)
    with running(app):
        until(lambda: app.counters.processed > 20)
        bench.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'outbox consumer%'"
        )
        until(lambda: len(bench.effects()) == 300)
    bench.applied_once()
