"""The stage on which verdicts are produced for real, and the table of what was expected and what came.

stage    a PostgreSQL of its own kind (small limits, prepared transactions), one database, one slot
acted    acted(expected, got): one line of the table that is printed at the end
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from fix_stack import Database, Stack, _stack, in_use, run
from outbox_connectors.definition import TableName
from outbox_pipeline.watch.assess import assess
from outbox_pipeline.watch.history import History, remember
from outbox_pipeline.watch.sample import Sample, WatchedNames
from outbox_pipeline.watch.sampling import Sampler
from outbox_pipeline.watch.sources.postgres import PostgresSource
from outbox_pipeline.watch.thresholds import MIB, Thresholds
from outbox_pipeline.watch.verdict import Verdict, VerdictKey
from replication_client import Manner, ReplicationClient, consuming
from waiting import PATIENCE_SECONDS, until

MAJORS = tuple(int(major) for major in os.environ.get("OUTBOX_TEST_MAJORS", "14 18").split())
SETTINGS = (
    "max_prepared_transactions=5",
    "max_replication_slots=10",
    "max_wal_senders=10",
    "max_slot_wal_keep_size=2GB",
    "checkpoint_timeout=1h",
    "fsync=off",
    "wal_sender_timeout=60s",
    "autovacuum=off",
    "archive_mode=on",
    "archive_command=true",
    "logical_decoding_work_mem=64kB",
)
# The product's times are minutes; a test's are seconds.
QUICK = Thresholds(
    stuck=3.0,
    frozen=2.0,
    pinned=1.0,
    pinned_bytes=4 * MIB,
    quiet_bytes=2 * MIB,
    catching_up_bytes=2 * MIB,
    idle=4.0,
    dead_rows=1000,
    vacuum_holder=0.5,
    unexplained_bytes=32 * MIB,
    stalled_critical=3600.0,
)
LOOK_SECONDS = 0.25

Acted = Callable[[str, str], None]
_TABLE = pytest.StashKey[list[tuple[str, str, str]]]()


@dataclass(slots=True)
class Stage:
    """One pipeline's database side, and a watch that looks at it."""

    server: Stack
    major: int
    database: Database
    names: WatchedNames
    admin: psycopg.Connection[Any]
    act: Acted
    thresholds: Thresholds = QUICK
    history: History = field(default_factory=History)
    login: dict[str, str] = field(default_factory=dict)
    sampler: Sampler | None = None

    def connect(self) -> psycopg.Connection[Any]:
        """Open a session as the watch does."""
        conninfo = self.server.conninfo(self.database.name, **self.login)
        return psycopg.connect(conninfo, autocommit=True, application_name=f"watch {self.names.slot}")

    def look(self) -> tuple[Sample, Verdict]:
        """Take one sample and assess it."""
        if self.sampler is None:
            table = TableName(*self.names.table.split(".", 1))
            self.sampler = Sampler(self.names, PostgresSource(self.connect, self.names, table), None, None)
        sample = self.sampler.take()
        verdict = assess(self.history, sample, self.thresholds)
        self.history = remember(self.history, sample)
        return sample, verdict

    def expect(
        self, key: VerdictKey, during: Callable[[], object] = lambda: None, steady: int = 2
    ) -> Verdict:
        """Look until the verdict is `key` and stays so; `during` goes on between two looks."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        row, said = 0, []
        while True:
            during()
            _, verdict = self.look()
            said.append(verdict.key.value)
            row = row + 1 if verdict.key is key else 0
            if row > steady or (row and time.monotonic() > deadline):
                self.act(key.value, verdict.key.value)
                return verdict
            if time.monotonic() > deadline:
                self.act(key.value, verdict.key.value)
                words = ", ".join(dict.fromkeys(said))
                pytest.fail(f"expected {key.value}; it said {words}: {verdict.cause}")
            time.sleep(LOOK_SECONDS)

    def insert(self, rows: int = 1) -> None:
        """Write events, in a session that has ended: only then are its rows counted (PostgreSQL 14)."""
        with self.database.connect() as conn:
            pid = conn.info.backend_pid
            schema, table = self.names.table.split(".", 1)
            conn.execute(
                sql.SQL("INSERT INTO {} (payload) SELECT '{{}}' FROM generate_series(1, %s)").format(
                    sql.Identifier(schema, table)
                ),
                (rows,),
            )
        ended = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
        until(lambda: self.admin.execute(ended, (pid,)).fetchone() == (True,), f"the end of session {pid}")

    def burn(self, megabytes: int, conn: psycopg.Connection[Any] | None = None) -> None:
        """Write WAL that nobody decodes anything from, and begin a new segment."""
        query = (
            "SELECT count(pg_logical_emit_message(FALSE, 'burn', repeat('y', 1000000)))"
            " FROM generate_series(1, %s)"
        )
        (conn or self.admin).execute(query, (megabytes,))
        self.admin.execute("SELECT pg_switch_wal()")

    def set(self, **settings: str) -> None:
        """Change settings of the server until the test ends."""
        for name, value in settings.items():
            self.admin.execute(
                sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
            )
        self.reload()

    def reload(self) -> None:
        """Make changed settings count, for the checkpointer too."""
        self.admin.execute("SELECT pg_reload_conf()")
        time.sleep(0.3)  # nothing tells whether another process has read them: repeat what depends on it

    def checkpoint(self) -> None:
        """Complete a checkpoint, which is when slots are invalidated."""
        self.admin.execute("CHECKPOINT")

    def slot(self, name: str = "", plugin: str = "pgoutput") -> None:
        """Make a logical slot."""
        self.admin.execute(
            "SELECT pg_create_logical_replication_slot(%s, %s)", (name or self.names.slot, plugin)
        )

    @contextmanager
    def consumer(
        self, manner: Manner = Manner.CONFIRMS, application: str = "Debezium Streaming"
    ) -> Iterator[ReplicationClient]:
        """Consume the slot."""
        with consuming(
            self.server.conninfo(self.database.name),
            self.names.slot,
            self.names.publication,
            manner,
            application,
        ) as client:
            yield client

    def execute(self, statement: LiteralString) -> None:
        """Run a statement as superuser."""
        self.admin.execute(statement)


@pytest.fixture(scope="session")
def small_server() -> Iterator[Callable[[int], Stack]]:
    """A factory of servers whose limits scenarios may change; each runs until the session ends."""
    with ExitStack() as kept:
        servers: dict[int, Stack] = {}

        def server(major: int) -> Stack:
            if major not in servers:
                name = f"{os.environ.get('OUTBOX_TEST_STACK', '')}-scene{major}".lstrip("-")
                kept.enter_context(in_use(name))
                options = [word for setting in SETTINGS for word in ("--set", setting)]
                run(name, "up", "--postgres", str(major), *options, "postgres")
                servers[major] = _stack(name)
            return servers[major]

        yield server


@pytest.fixture
def acted(request: pytest.FixtureRequest) -> Acted:
    """Write a line into the table of scenarios."""
    table = request.config.stash.setdefault(_TABLE, [])
    name = request.node.name.removeprefix("test_")

    def act(expected: str, got: str) -> None:
        table.append((name, expected, got))

    return act


@pytest.fixture(params=MAJORS)
def stage(
    request: pytest.FixtureRequest,
    small_server: Callable[[int], Stack],
    new_database: Callable[[Stack], Database],
    pipeline_name: str,
    acted: Acted,
) -> Iterator[Stage]:
    """An outbox, its publication and its slot on a server of each major."""
    server = small_server(request.param)
    database = new_database(server)
    names = WatchedNames(
        pipeline=pipeline_name,
        database=database.name,
        slot=pipeline_name,
        publication=pipeline_name,
        table="public.outbox",
        connector=pipeline_name,
        connector_user="postgres",
    )
    with database.connect() as admin:
        admin.execute(
            "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(),"
            " occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(), payload jsonb)"
        )
        admin.execute("CREATE TABLE other (x text)")
        admin.execute(
            sql.SQL("CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert')").format(
                sql.Identifier(pipeline_name)
            )
        )
        stage = Stage(server, request.param, database, names, admin, acted)
        stage.slot()
        yield stage
        if stage.sampler is not None:
            stage.sampler.close()
        _clean(admin, database.name)


def _clean(admin: psycopg.Connection[Any], database: str) -> None:
    """Leave the server as the next test expects it."""
    for (gid,) in admin.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = %s", (database,)
    ).fetchall():
        admin.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    admin.execute("ALTER SYSTEM RESET ALL")
    admin.execute("SELECT pg_reload_conf()")
    for (slot,) in admin.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database <> %s OR NOT active", (database,)
    ).fetchall():
        with suppress(psycopg.Error):
            admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    admin.execute("CHECKPOINT")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table: scenario, expected, got."""
    table = config.stash.get(_TABLE, [])
    if not table:
        return
    terminalreporter.section("scenarios of the watch")
    width = max(len(name) for name, _, _ in table)
    expected_width = max(len(expected) for _, expected, _ in table)
    for name, expected, got in table:
        mark = "" if got == expected else "   WRONG"
        terminalreporter.write_line(f"{name.ljust(width)}  {expected.ljust(expected_width)}  {got}{mark}")
    wrong = sum(expected != got for _, expected, got in table)
    keys = {expected for _, expected, _ in table}
    terminalreporter.write_line(
        f"{len(table)} verdicts, {len(keys)} of {len(VerdictKey)} kinds, wrong verdicts: {wrong}"
    )


def renamed(stage: Stage, **changes: Any) -> None:
    """Watch for other names than the stage's."""
    stage.names = replace(stage.names, **changes)
