"""Handlers that fail in many ways or change their session: only their own jobs are affected."""

from __future__ import annotations

import random
from typing import Any, Final

import psycopg
import pytest
from uuid_utils.compat import uuid7

from durable_lab import Lab, finish, new_inbox, running_workers, write_effect
from faulty_handlers import Connection, apply_fault, expected_failures, is_permanent, random_data
from forms import SEED, sized
from outbox_consumers import Event
from outbox_consumers.durable import Job
from waiting import until

pytestmark = pytest.mark.stack

JOBS: Final = sized(1_500, 10_000)
INSERT: Final = b"INSERT INTO public.effect (event_id, key, n) VALUES (%s, %s, %s)"


def test_a_fault_affects_only_its_own_job(lab: Lab) -> None:
    durable = new_inbox(lab.dsn)

    def work(conn: Connection, event: Event) -> None:
        apply_fault(conn, event)
        n = event.data["n"]
        conn.execute(b"%b -- %d" % (INSERT, n // 50), (event.id, event.key, n))

    durable.handler("Alone")(work)
    durable.handler("Together", together=True)(work)
    chance = random.Random(SEED)
    jobs = [
        Job(kind, random_data(chance, n), key=f"{kind} {chance.randrange(12)}", id=uuid7())
        for n, kind in enumerate(chance.choices(["Alone", "Together"], k=JOBS))
    ]
    with psycopg.connect(lab.dsn) as conn:
        durable.put_many(conn, jobs)
    finish(lab, durable)
    with psycopg.connect(lab.dsn) as conn:
        dead = {job.event.id for job in durable.dead(conn)}
    assert dead == {job.id for job in jobs if job.data["fault"] == "rejects"}
    assert durable.counters.failed == sum(expected_failures(job.data) for job in jobs) + len(dead)
    lab.job_ids = [job.id for job in jobs if job.id and not is_permanent(job.data)]
    lab.assert_applied_once_in_order()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("setting", ["SET LOCAL search_path TO pg_catalog", "SET search_path TO pg_catalog"])
def test_a_handler_may_work_in_another_schema(lab: Lab, setting: str, together: bool) -> None:
    durable = new_inbox(lab.dsn, keep=60)

    @durable.handler("Work", max_attempts=1, together=together)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        conn.execute(setting.encode())
        values = (event.id, event.key, event.data["n"])
        conn.execute("INSERT INTO public.effect (event_id, key, n) VALUES (%s, %s, %s)", values)

    lab.add_jobs(50)
    finish(lab, durable)
    lab.assert_applied_once_in_order()
    assert lab.states() == {"done": 50}


def test_altering_a_table_with_prepared_statements_counts_no_attempt(lab: Lab) -> None:
    durable = new_inbox(lab.dsn)

    @durable.handler("Work", max_attempts=1)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        conn.execute("SELECT * FROM effect WHERE n = %s", (event.data["n"],)).fetchall()
        write_effect(conn, event)

    with running_workers(durable):
        for round in range(3):
            lab.add_jobs(10)
            until(lambda: lab.left() == 0)
            lab.run(f"ALTER TABLE effect ADD COLUMN other{round} int")
    lab.assert_applied_once_in_order()
    assert durable.counters.transient >= 1
