"""Handlers that misbehave, or find their session in an odd state: no job may pay for it but their own."""

from __future__ import annotations

import random
from typing import Any, Final

import psycopg
import pytest
from uuid_utils.compat import uuid7

from durable_lab import Lab, bare, finish, working, write_effect
from fates import Connection, drawn, failures_of, lasts, meet
from forms import SEED, sized
from outbox_consumers import Event
from outbox_consumers.durable import Job
from waiting import until

pytestmark = pytest.mark.stack

JOBS: Final = sized(1_500, 10_000)
INSERT: Final = b"INSERT INTO public.effect (event_id, key, n) VALUES (%s, %s, %s)"


def test_every_job_meets_its_own_fate_only(lab: Lab) -> None:
    durable = bare(lab.dsn)

    def work(conn: Connection, event: Event) -> None:
        meet(conn, event)
        n = event.data["n"]
        conn.execute(b"%b -- %d" % (INSERT, n // 50), (event.id, event.key, n))

    durable.handler("Alone")(work)
    durable.handler("Together", together=True)(work)
    chance = random.Random(SEED)
    jobs = [
        Job(kind, drawn(chance, n), key=f"{kind} {chance.randrange(12)}", id=uuid7())
        for n, kind in enumerate(chance.choices(["Alone", "Together"], k=JOBS))
    ]
    with psycopg.connect(lab.dsn) as conn:
        durable.put_many(conn, jobs)
    finish(lab, durable)
    with psycopg.connect(lab.dsn) as conn:
        dead = {job.event.id for job in durable.dead(conn)}
    assert dead == {job.id for job in jobs if job.data["fate"] == "rejects"}
    assert durable.counters.failed == sum(failures_of(job.data) for job in jobs) + len(dead)
    lab.put = [job.id for job in jobs if job.id and not lasts(job.data)]
    lab.applied_once_in_order()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("setting", ["SET LOCAL search_path TO pg_catalog", "SET search_path TO pg_catalog"])
def test_a_handler_may_work_in_another_schema(lab: Lab, setting: str, together: bool) -> None:
    durable = bare(lab.dsn, keep=60)

    @durable.handler("Work", max_attempts=1, together=together)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        conn.execute(setting.encode())
        values = (event.id, event.key, event.data["n"])
        conn.execute("INSERT INTO public.effect (event_id, key, n) VALUES (%s, %s, %s)", values)

    lab.jobs(50)
    finish(lab, durable)
    lab.applied_once_in_order()
    assert lab.states() == {"done": 50}


def test_a_table_altered_under_a_prepared_statement_costs_no_attempt(lab: Lab) -> None:
    durable = bare(lab.dsn)

    @durable.handler("Work", max_attempts=1)
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        conn.execute("SELECT * FROM effect WHERE n = %s", (event.data["n"],)).fetchall()
        write_effect(conn, event)

    with working(durable):
        for round in range(3):
            lab.jobs(10)
            until(lambda: lab.left() == 0)
            lab.run(f"ALTER TABLE effect ADD COLUMN other{round} int")
    lab.applied_once_in_order()
    assert durable.counters.transient >= 1
