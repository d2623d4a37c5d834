"""Partitions that leave and come back while they wait, and waiting that holds nothing."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from fix_consumer import Bench, running, write_effect
from outbox_consumers import Event, RetryStrategy
from waiting import until

pytestmark = pytest.mark.stack


def test_a_paused_partition_that_is_revoked_and_assigned_again_continues(bench: Bench) -> None:
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
            until(lambda: failing_too.counters.failures > 0, "the other member has a part")
        until(lambda: app.counters.revoked > revoked + 3)
        broken = False
        until(lambda: app.counters.processed == 150)
    bench.applied_once()


def test_waiting_for_a_retry_holds_no_transaction(bench: Bench) -> None:
    app = bench.app(retry=RetryStrategy(wait=3600, exponential_wait=0, max_wait=3600, jitter=0))

    @app.handler("Placed")
    def placed(conn: psycopg.Connection[Any], event: Event) -> None:
        raise RuntimeError("broken")

    bench.send_many(1)
    state = (
        "SELECT state FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'outbox consumer%'"
    )
    with running(app):
        until(lambda: app.counters.failures == 1)
        until(lambda: bench.query(state) == [("idle",)], "its session holds no transaction")  # for an hour
