"""What the watch says on a standby: whether a copy of the slot is there (PostgreSQL 17 and later)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fix_scenarios import MAJORS, QUICK, Acted
from fix_stack import Stack, _instance, run
from local_stack.accounts import server_account
from outbox_connectors.definition import TableName
from outbox_pipeline.watch.assess import assess
from outbox_pipeline.watch.history import History, remember
from outbox_pipeline.watch.sample import WatchedNames
from outbox_pipeline.watch.sampling import Sampler
from outbox_pipeline.watch.sources.postgres import PostgresSource
from outbox_pipeline.watch.verdict import Verdict, VerdictKey
from waiting import PATIENCE_SECONDS, until

pytestmark = [pytest.mark.stack, pytest.mark.matrix, pytest.mark.slow]

SLOT = "kept"


@dataclass(slots=True)
class Standby:
    """A streaming standby, made by copying a stopped primary."""

    primary: Stack
    data: Path
    port: int
    process: subprocess.Popen[bytes]
    history: History = field(default_factory=History)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.conninfo, autocommit=True)

    @property
    def conninfo(self) -> str:
        return make_conninfo(self.primary.conninfo("shop"), port=self.port)

    def expect(self, names: WatchedNames, key: VerdictKey, act: Acted) -> Verdict:
        """Look at the standby until it says `key`."""
        source = PostgresSource(self.connect, names, TableName("public", "outbox"))
        sampler = Sampler(names, source, None, None)
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while True:
                sample = sampler.take()
                verdict = assess(self.history, sample, QUICK)
                self.history = remember(self.history, sample)
                if verdict.key is key or time.monotonic() > deadline:
                    act(key.value, verdict.key.value)
                    assert verdict.key is key, verdict.cause
                    return verdict
                time.sleep(0.5)
        finally:
            sampler.close()


def _free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(params=[major for major in MAJORS if major >= 17])
def standby(request: pytest.FixtureRequest, small_server: Callable[[int], Stack]) -> Iterator[Standby]:
    primary = small_server(request.param)
    instance = _instance(primary.name)
    data = instance.data("postgres")
    copy = data.with_name("standby")
    with psycopg.connect(primary.conninfo("shop"), autocommit=True) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS outbox (id uuid PRIMARY KEY, occurred_at timestamptz)")
        conn.execute("DROP PUBLICATION IF EXISTS kept")
        conn.execute("CREATE PUBLICATION kept FOR TABLE outbox")
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)", (SLOT,))
        conn.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    run(primary.name, "stop", "postgres")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("postmaster.pid"))
    run(primary.name, "start", "postgres")
    port = _free_port()
    link = make_conninfo(primary.conninfo("shop")).replace("'", "''")
    with (copy / "postgresql.auto.conf").open("a") as file:
        file.write(
            f"port = {port}\nprimary_conninfo = '{link}'\nprimary_slot_name = 'standby'\n"
            "hot_standby_feedback = on\narchive_mode = off\nsync_replication_slots = off\n"
        )
    (copy / "standby.signal").touch()
    # A slot in the copied directory would be a foreign one on the standby.
    shutil.rmtree(copy / "pg_replslot" / SLOT)
    shutil.rmtree(copy / "pg_replslot" / "standby")
    account = server_account()
    if account is not None:
        for path in [copy, *copy.rglob("*")]:
            shutil.chown(path, account.uid, account.gid)
    copy.chmod(0o700)
    base = instance.postgres_base
    assert base is not None
    program = Path(base) / "lib" / "postgres" / str(request.param) / "bin" / "postgres"
    process = subprocess.Popen(
        [program, "-D", copy],
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )
    made = Standby(primary, copy, port, process)
    _until_up(made)
    yield made
    process.terminate()
    process.wait(PATIENCE_SECONDS)
    shutil.rmtree(copy)
    with psycopg.connect(primary.conninfo("shop"), autocommit=True) as conn:
        held = (
            "SELECT count(*) FROM pg_replication_slots WHERE active_pid IS NOT NULL AND slot_name = ANY (%s)"
        )
        kept = [SLOT, "standby"]
        until(lambda: conn.execute(held, (kept,)).fetchone() == (0,), "the server notices that it is gone")
        conn.execute("SELECT pg_drop_replication_slot(name) FROM unnest(%s::name[]) AS name", (kept,))
        conn.execute("DROP PUBLICATION kept")
        conn.execute("DROP TABLE outbox")


def _until_up(standby: Standby) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            standby.connect().close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, "the standby does not start"
            time.sleep(0.2)


def test_a_standby_without_and_with_a_copy_of_the_slot(standby: Standby, acted: Acted) -> None:
    names = WatchedNames(
        pipeline="kept",
        database="shop",
        slot=SLOT,
        publication="kept",
        table="public.outbox",
        connector="kept",
        connector_user="postgres",
        failover=True,
    )
    verdict = standby.expect(names, VerdictKey.FAILOVER_NOT_READY, acted)
    assert "no copy" in verdict.cause
    with standby.connect() as conn:
        conn.execute("ALTER SYSTEM SET sync_replication_slots = on")
        conn.execute("SELECT pg_reload_conf()")
    with psycopg.connect(standby.primary.conninfo("shop"), autocommit=True) as conn:
        # The copy is made once the standby has what the slot needs.
        conn.execute("SELECT pg_log_standby_snapshot()")
        standby.expect(names, VerdictKey.HEALTHY, acted)
    # A slot of the standby's own is judged like any other.
    own = replace(names, slot="own", failover=False)
    with (
        psycopg.connect(standby.primary.conninfo("shop"), autocommit=True) as primary,
        standby.connect() as conn,
    ):
        primary.execute("SELECT pg_log_standby_snapshot()")
        conn.execute("SET statement_timeout = '240s'")
        _with_snapshots(
            primary, lambda: conn.execute("SELECT pg_create_logical_replication_slot('own', 'pgoutput')")
        )
        standby.expect(own, VerdictKey.CONSUMER_DOWN, acted)
        conn.execute("SELECT pg_drop_replication_slot('own')")


def _with_snapshots(primary: psycopg.Connection[Any], create: Callable[[], object]) -> None:
    """Making a slot on a standby waits for a snapshot that the primary logs."""
    thread = threading.Thread(target=create)
    thread.start()
    while thread.is_alive():
        primary.execute("SELECT pg_log_standby_snapshot()")
        thread.join(0.3)
