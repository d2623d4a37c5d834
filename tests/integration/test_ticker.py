"""The ticker on a real server: it survives the server, keeps one session and stops when told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_provision import Pipeline
from fix_stack import Database, Stack, in_use, run
from local_stack.exports import variables
from local_stack.instance import load
from local_stack.layout import Layout
from outbox_pipeline.servers import lsn
from outbox_pipeline.watch import heartbeat
from waiting import PATIENCE_SECONDS, until

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.stack


class Running:
    """A ticker in a thread of its own, with what it reported."""

    def __init__(self, conninfo: str, interval_seconds: float = 0.05) -> None:
        self.ticks = heartbeat.Ticks()
        self.reports: list[str] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(conninfo, interval_seconds))

    def _run(self, conninfo: str, interval_seconds: float) -> None:
        heartbeat.run(
            lambda: psycopg.connect(conninfo, autocommit=True, connect_timeout=5, application_name="t"),
            "shop.heartbeat",
            interval_seconds=interval_seconds,
            stopped=self.stop.is_set,
            sleep=lambda seconds: void(self.stop.wait(seconds)),
            clock=time.monotonic,
            report=self.reports.append,
            ticks=self.ticks,
        )

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()


def void(_: Any) -> None:
    """Drop a result."""


def test_ticks_move_the_log_forward(database: Database) -> None:
    with database.connect() as conn:
        row = conn.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
    with Running(database.conninfo) as running:
        until(lambda: running.ticks.sent >= 3)
        assert lsn.parse(running.ticks.last_lsn) > lsn.parse(row[0])
    assert not running.thread.is_alive()
    assert running.reports == []


def test_a_ticker_keeps_one_session_and_leaves_none(database: Database) -> None:
    count = "SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE datname = %s AND application_name = 't'"
    with database.connect() as conn:
        with Running(database.conninfo) as running:
            until(lambda: running.ticks.sent >= 5)
            assert conn.execute(count, (database.name,)).fetchone() == (1,)
        until(lambda: conn.execute(count, (database.name,)).fetchone() == (0,))


def test_a_lost_session_is_made_anew(database: Database) -> None:
    with database.connect() as conn, Running(database.conninfo) as running:
        until(lambda: running.ticks.sent >= 1)
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = %s AND application_name = 't'",
            (database.name,),
        )
        until(lambda: running.ticks.failed >= 1)
        sent = running.ticks.sent
        until(lambda: running.ticks.sent >= sent + 2)
    assert len(running.reports) == 2
    assert running.reports[0].startswith("no tick: ")
    assert running.reports[1].startswith("ticking again at ")


@pytest.fixture
def own_server() -> Iterator[Stack]:
    """A PostgreSQL that a test may kill."""
    with in_use("ticker"):
        run("ticker", "up", "postgres")
        yield Stack("ticker", variables(load(Layout(), "ticker")))


@pytest.mark.slow
def test_a_ticker_survives_a_killed_server(own_server: Stack) -> None:
    with Running(own_server.conninfo(), interval_seconds=0.2) as running:
        until(lambda: running.ticks.sent >= 2)
        own_server.kill("postgres")
        until(lambda: running.ticks.failed >= 3)
        sent = running.ticks.sent
        own_server.start("postgres")
        until(lambda: running.ticks.sent >= sent + 2)
    assert len(running.reports) == 2  # one line for the failure, one for the recovery, however long it took


def outboxctl(database: Database, *arguments: str) -> subprocess.Popen[str]:
    """Run outboxctl against a test's database."""
    environ = {**os.environ, **database.server.environ, "OUTBOX_PG_ADMIN": database.conninfo}
    code = "from outbox_pipeline.cli import main; main()"
    command = [sys.executable, "-c", code, "-f", str(ROOT / "connectors" / "outbox.yaml"), *arguments]
    return subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


@pytest.fixture
def registered(own_pipeline: Pipeline) -> Pipeline:
    """A pipeline whose connector `apply` has made, so that it takes ticks."""
    assert own_pipeline.run("apply", "--no-wait").code == 0
    return own_pipeline


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_watch_ticks_until_it_is_told_to_stop(registered: Pipeline, number: signal.Signals) -> None:
    child = registered.start("--json", "watch", "--tick-only")
    prefix = registered.site.definition.heartbeat_prefix
    assert child.stderr is not None
    assert child.stderr.readline() == f"ticking every 10 s with the prefix {prefix}\n"
    with registered.site.database.connect() as conn:
        idle = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'outboxctl watch' AND state = 'idle' AND datname = current_database()"
            " AND query LIKE '%pg_logical_emit_message%'"
        )
        until(lambda: conn.execute(idle).fetchone() != (0,))
    child.send_signal(number)
    out, err = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0
    assert err == "stopped\n"
    # The tick may be done on the server and not yet counted here when the signal arrives.
    assert json.loads(out)["failed"] == 0


def test_watch_sends_one_tick(registered: Pipeline) -> None:
    done = registered.run("watch", "--tick-only", "--once")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("ticks sent: 1, failed: 0, last at ")


def test_no_tick_is_sent_where_there_is_no_connector(untouched: Pipeline) -> None:
    done = untouched.run("watch", "--tick-only", "--once")
    assert done.code == 7
    assert "no tick is sent: there is no connector" in done.err


def test_watch_once_without_a_server_says_so(postgres: Stack) -> None:
    gone = Database("shop", "host=127.0.0.1 port=1 user=postgres", postgres)
    out, err = outboxctl(gone, "watch", "--tick-only", "--once").communicate(timeout=PATIENCE_SECONDS)
    assert out == ""
    assert err.startswith("error: PostgreSQL at 127.0.0.1:1: ")
