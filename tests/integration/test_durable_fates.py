"""Jobs whose handlers misbehave in every way at once, over one long session: no job may pay for another."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import psycopg
import pytest
from uuid_utils.compat import uuid7

from durable_lab import Lab, bare, finish
from fates import Connection, drawn, failures_of, lasts, meet
from fix_stack import Database
from forms import SEED, sized
from outbox_consumers import Event
from outbox_consumers.durable import Job

pytestmark = pytest.mark.stack

JOBS: Final = sized(1_500, 10_000)
INSERT: Final = b"INSERT INTO public.effect (event_id, key, n) VALUES (%s, %s, %s)"


def test_every_job_meets_its_own_fate_only(database: Database, tmp_path: Path) -> None:
    lab, durable = Lab(database.conninfo, tmp_path), bare(database.conninfo)
    lab.create()

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
