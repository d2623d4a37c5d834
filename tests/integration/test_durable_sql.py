"""Every statement of the durable inbox can be prepared on every supported server version."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg import sql as composing
from psycopg.pq import ExecStatus

from durable_lab import Lab, running_workers
from fix_provision import PROGRAM, Site
from fix_stack import Database
from outbox_consumers import sql
from outbox_consumers.inbox import job_tables, schema
from waiting import until

pytestmark = pytest.mark.stack

NAMES = sorted(path.stem for path in Path(sql.__file__).parent.glob("durable_*.sql"))


@pytest.mark.matrix
def test_every_statement_can_be_prepared(site: Site) -> None:
    with site.admin() as conn:
        schema.apply(conn, schema.steps())
        schema.apply(conn, job_tables.steps())
        schema.apply(conn, job_tables.steps(roles=[conn.info.user]))
        refused = {name: reason for name in NAMES if (reason := refusal(conn, name))}
    assert not refused, "\n".join(f"{name}: {reason}" for name, reason in refused.items())


@pytest.mark.matrix
def test_jobs_are_handled_on_every_server(site: Site, tmp_path: Path) -> None:
    lab = Lab(site.database.conninfo, tmp_path)
    lab.create()
    durable = lab.inbox(keep=60)
    lab.add_jobs(100)
    with running_workers(durable, workers=2):
        until(lambda: lab.left() == 0)
    lab.assert_applied_once_in_order()
    assert lab.states() == {"done": 100}


def refusal(conn: psycopg.Connection, name: str) -> str:
    """Prepare a statement, and return the error of the server, empty without one."""
    parts = {
        "job": job_tables.job("inbox"),
        "worker": job_tables.worker("inbox"),
        "index": composing.Identifier("x"),
        "role": composing.Identifier("x"),
    }
    text = composing.SQL(sql.get(name, conn.info.server_version // 10000)).format(**parts).as_string(conn)
    numbers: dict[str, int] = {}
    numbered = re.sub(r"%\((\w+)\)[sb]", lambda m: f"${numbers.setdefault(m[1], len(numbers) + 1)}", text)
    result = conn.pgconn.prepare(b"", numbered.encode())
    return "" if result.status == ExecStatus.COMMAND_OK else result.error_message.decode()


def test_outboxctl_creates_the_tables(database: Database) -> None:
    """Dry run, run, run again; `--sql` prints the statements."""
    init = [str(PROGRAM), "--json", "inbox", "init", "--durable", "--dsn", database.conninfo]

    def ran(*arguments: str) -> dict[str, str]:
        done = subprocess.run([*init, *arguments], capture_output=True, text=True, check=True)
        return {found["name"]: found["state"] for found in json.loads(done.stdout)["objects"]}

    with database.connect() as conn:
        assert ran("--dry-run")["inbox_job"] == "missing"
        assert job_tables.missing(conn) == ("inbox_job", "inbox_worker")
        assert ran()["inbox_job"] == "missing"
        assert job_tables.missing(conn) == ()
        assert ran("--grant", "postgres")["inbox_worker"] == "present"
    printed = subprocess.run([*init, "--sql"], capture_output=True, text=True, check=True).stdout
    assert len(json.loads(printed)["statements"]) == len(schema.steps()) + len(job_tables.steps())
