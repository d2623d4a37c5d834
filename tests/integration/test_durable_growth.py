"""The cost of taking jobs does not depend on how many wait: 50,000 here, a million in `make soak`."""

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
MANY = sized(50_000, 1_000_000)
# Rows in each state that receiving, sorting and failing leave behind.
FILL = """
INSERT INTO inbox_job (consumer, state, queue, priority, due_at, event_id, event_type, topic, partition,
                       "offset", headers)
SELECT 'billing', {state}, {queue}, 0, {due}, gen_random_uuid(), 'Work', '', 0, 0, '[]'
FROM generate_series(1, {count}) AS n
"""


def fill(lab: Lab, count: int, shape: str) -> None:
    """Add rows: waiting behind one hot key, due in a day, or ready."""
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
def test_the_cost_of_taking_does_not_grow_with_the_queue(lab: Lab, shape: str, analysed: bool) -> None:
    """Measured by the pages that a worker's statements read, not by time."""
    queue = JobQueue("billing", "inbox", 0)
    with psycopg.connect(lab.dsn, autocommit=True) as conn:
        conn.execute("ALTER TABLE inbox_job SET (autovacuum_enabled = off)")
        [(worker,)] = conn.execute(
            "INSERT INTO inbox_worker (consumer, name, alive_until, backend)"
            " VALUES ('billing', 'one', 'infinity', 0) RETURNING id"
        )
        pages: dict[int, int] = {}
        filled = 0
        for rows in (0, MANY):
            fill(lab, rows - filled, shape) if rows else None
            filled = rows
            lab.run(FILL.format(state="'ready'", queue="NULL", due="now()", count=BATCH * TAKES))
            if analysed:
                conn.execute("ANALYZE inbox_job")
            for _ in range(TAKES - 1):
                work(conn, queue, worker)
            assert_index(conn, worker)
            pages[rows] = sum(pages_read(conn, name, worker) for name in STATEMENTS)
            work(conn, queue, worker)
    print(shape, analysed, pages)
    assert pages[MANY] < 2 * pages[0] + 50, pages


def work(conn: psycopg.Connection[Any], queue: JobQueue, worker: int) -> None:
    """Do what a worker does with one batch: sort, activate, take, finish."""
    with conn.transaction():
        queue.sort_new(conn)
        queue.activate_due(conn)
        jobs = queue.take(conn, worker, BATCH)
    with conn.transaction():
        assert queue.finish(conn, worker, jobs) == len(jobs) > 0


def pages_read(conn: psycopg.Connection[Any], name: str, worker: int) -> int:
    """Count the pages that a statement reads, from memory or disk, and roll it back."""
    statement = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + job_tables.compose(name, "inbox")
    values = {"consumer": "billing", "worker": worker, "limit": BATCH}
    with conn.transaction(force_rollback=True):
        [([plan],)] = conn.execute(statement, values, prepare=False)
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


def assert_index(conn: psycopg.Connection[Any], worker: int) -> None:
    """Assert that jobs are found through their partial index, not by reading the table."""
    values = {"consumer": "billing", "worker": worker, "limit": BATCH}
    with conn.transaction(force_rollback=True):
        statement = b"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) " + job_tables.compose(
            "durable_take", "inbox"
        )
        plan = "\n".join(line for (line,) in conn.execute(statement, values, prepare=False))
    assert "using inbox_job_ready on inbox_job" in plan, plan
    assert "Seq Scan on inbox_job" not in plan, plan
