"""Taking jobs costs the same whether a handful wait or a million (`make soak`; here 50,000)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from durable_lab import Lab
from forms import sized
from outbox_consumers.durable.queue import JobQueue
from outbox_consumers.inbox import job_tables

pytestmark = pytest.mark.stack

BATCH = 50
TAKES = 30
STATEMENTS = ("durable_read_new", "durable_make_due_ready", "durable_take")
MOST = sized(50_000, 1_000_000)
# Rows of each shape, as receiving, sorting and failing leave them behind.
FILL = """
INSERT INTO inbox_job (consumer, state, queue, priority, due_at, event_id, event_type, topic, partition,
                       "offset", headers)
SELECT 'billing', {state}, {queue}, 0, {due}, gen_random_uuid(), 'Work', '', 0, 0, '[]'
FROM generate_series(1, {count}) AS n
"""


def fill(lab: Lab, count: int, shape: str) -> None:
    """Add waiting rows: of one hot key, of many keys, of a far future, or just ready."""
    if shape == "hot":  # all of one key
        lab.run(FILL.format(state="'waiting'", queue="'hot'::bytea",
                            due="now()", count=count))  # fmt: skip
    elif shape == "later":
        lab.run(FILL.format(state="'later'", queue="NULL", due="now() + interval '1 day'", count=count))
    else:
        lab.run(FILL.format(state="'ready'", queue="NULL", due="now()", count=count))


@pytest.mark.parametrize("shape", ["ready", "hot", "later"])
@pytest.mark.parametrize("analysed", [False, True], ids=["no statistics", "analysed"])
@pytest.mark.timeout(1800)
def test_taking_is_flat_however_many_wait(lab: Lab, shape: str, analysed: bool) -> None:
    """By the pages that a worker's statements touch, after it has worked a while: no clock is asked."""
    queue = JobQueue("billing", "inbox", 0)
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        conn.execute("ALTER TABLE inbox_job SET (autovacuum_enabled = off)")
        [(worker,)] = conn.execute(
            "INSERT INTO inbox_worker (consumer, name, alive_until, backend)"
            " VALUES ('billing', 'one', 'infinity', 0) RETURNING id"
        )
        pages: dict[int, int] = {}
        there = 0
        for rows in (0, MOST):
            fill(lab, rows - there, shape) if rows else None
            there = rows
            lab.run(FILL.format(state="'ready'", queue="NULL", due="now()", count=BATCH * TAKES))
            if analysed:
                conn.execute("ANALYZE inbox_job")
            for _ in range(TAKES - 1):
                work(conn, queue, worker)
            assert_index(conn, worker)
            pages[rows] = sum(touched(conn, name, worker) for name in STATEMENTS)
            work(conn, queue, worker)
    print(shape, analysed, pages)
    assert pages[MOST] < 2 * pages[0] + 50, pages


def work(conn: psycopg.Connection[Any], queue: JobQueue, worker: int) -> None:
    """Do what a worker does with one batch: sort, wake, take, finish."""
    with conn.transaction():
        queue.sort_new(conn)
        queue.activate_due(conn)
        jobs = queue.take(conn, worker, BATCH)
    with conn.transaction():
        assert queue.finish(conn, worker, jobs) == len(jobs) > 0


def touched(conn: psycopg.Connection[Any], name: str, worker: int) -> int:
    """Count the pages that a statement reads, in memory or not, and undo it."""
    statement = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + job_tables.compose(name, "inbox")
    values = {"consumer": "billing", "worker": worker, "limit": BATCH}
    with conn.transaction(force_rollback=True):
        [([plan],)] = conn.execute(statement, values, prepare=False)
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


def assert_index(conn: psycopg.Connection[Any], worker: int) -> None:
    """The jobs are found through their partial index, never by reading the table."""
    values = {"consumer": "billing", "worker": worker, "limit": BATCH}
    with conn.transaction(force_rollback=True):
        statement = b"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " + job_tables.compose(
            "durable_take", "inbox"
        )
        plan = "\n".join(line for (line,) in conn.execute(statement, values, prepare=False))
    assert "using inbox_job_ready on inbox_job" in plan, plan
    assert "Seq Scan on inbox_job" not in plan, plan
