"""The real PostgreSQL, Kafka and Kafka Connect for tests, through scripts/stack.

    stack             all three services; started on first use
    postgres          only PostgreSQL of the same stack (18), for tests that need no Kafka
    postgres_server   postgres_server(14) ... postgres_server(18): a PostgreSQL of that major
    database          a fresh database on `postgres`, dropped at the end
    new_database      new_database(server): the same on any server, as often as wanted
    pipeline_name     a name that no other test uses: for pipelines, slots, topics, groups

The stack is the one named by $OUTBOX_TEST_STACK, which is left running, else one called `test`, which is
stopped at the end (as are the servers of other majors) unless another test run still uses it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from local_stack.exports import variables
from local_stack.instance import Instance, load
from local_stack.layout import Layout
from local_stack.processes import recorded
from waiting import PATIENCE_SECONDS

SCRIPT = Layout().repository / "scripts" / "stack"


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack. `environ` is what `scripts/stack env` exports."""

    name: str
    environ: Mapping[str, str]

    @property
    def kafka(self) -> str:
        return self.environ["OUTBOX_KAFKA_BOOTSTRAP"]

    @property
    def connect_url(self) -> str:
        return self.environ["OUTBOX_CONNECT_URL"]

    def conninfo(self, dbname: str = "postgres", **other: str) -> str:
        """How the superuser connects; `other` replaces or adds libpq settings (user, password, ...)."""
        environ = self.environ
        settings = {
            "host": environ["PGHOST"],
            "port": environ["PGPORT"],
            "user": environ["PGUSER"],
            "password": environ["PGPASSWORD"],
            "dbname": dbname,
        }
        return make_conninfo(**{**settings, **other})

    def log(self, service: str) -> Path:
        return _instance(self.name).log(service)

    @contextmanager
    def frozen(self, service: str) -> Iterator[None]:
        """Freeze a service's process while the block runs; afterwards wait until it works again.

        Nobody who follows may find a broker that has not yet noticed that it was away.
        """
        process = recorded(_instance(self.name).pid_file(service))
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)
            self.start(service)

    def start(self, service: str) -> None:
        """Start a service again and wait until it works."""
        run(self.name, "start", service)

    def stop(self, service: str) -> None:
        """Stop a service in an orderly way."""
        run(self.name, "stop", service)

    def kill(self, service: str) -> None:
        """Kill a service with all its processes: SIGKILL, as in a crash."""
        run(self.name, "kill", service)


@dataclass(frozen=True, slots=True)
class Database:
    """A database of one test. `conninfo` is the superuser's."""

    name: str
    conninfo: str
    server: Stack

    def connect(self) -> psycopg.Connection:
        """Open a session of the superuser in autocommit mode; the caller closes it."""
        return psycopg.connect(self.conninfo, autocommit=True)


def run(name: str, *arguments: str) -> str:
    """Run scripts/stack for one stack and return its output; a failure shows what it said."""
    done = subprocess.run(
        [SCRIPT, "--name", name, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"scripts/stack --name {name} {' '.join(arguments)}:\n{done.stdout}{done.stderr}", False)
    return done.stdout


def _instance(name: str) -> Instance:
    return load(Layout(), name)


def _stack(name: str) -> Stack:
    return Stack(name, variables(_instance(name)))


@contextmanager
def in_use(name: str) -> Iterator[None]:
    """Keep a stack for this test run, and stop it at the end unless another test run still uses it."""
    stacks = Layout().stacks
    stacks.mkdir(exist_ok=True)
    with (stacks / f".{name}.users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            run(name, "down")


@pytest.fixture(scope="session")
def stack_name() -> Iterator[str]:
    """The stack that this test run uses; running or not."""
    given = os.environ.get("OUTBOX_TEST_STACK")
    if given:
        yield given
        return
    with in_use("test"):
        yield "test"


@pytest.fixture(scope="session")
def postgres(stack_name: str) -> Stack:
    """PostgreSQL of the test stack, without the rest."""
    run(stack_name, "up", "postgres")
    return _stack(stack_name)


@pytest.fixture(scope="session")
def stack(stack_name: str) -> Stack:
    """PostgreSQL, Kafka and Kafka Connect, all working."""
    run(stack_name, "up")
    return _stack(stack_name)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[int], Stack]]:
    """A factory: a PostgreSQL of the major asked for, shared by all tests that ask for it."""
    with ExitStack() as kept:
        servers: dict[int, Stack] = {}

        def server(major: int) -> Stack:
            if major not in servers:
                name = f"pg{major}"
                kept.enter_context(in_use(name))
                run(name, "up", "--postgres", str(major), "postgres")
                servers[major] = _stack(name)
            return servers[major]

        yield server


@pytest.fixture
def new_database() -> Iterator[Callable[[Stack], Database]]:
    """A factory: an empty database on a server, dropped when the test ends, with its slots."""
    with ExitStack() as made:

        def create(server: Stack) -> Database:
            name = f"test_{uuid.uuid4().hex[:12]}"
            with psycopg.connect(server.conninfo(), autocommit=True) as conn:
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            made.callback(_drop, server, name)
            return Database(name, server.conninfo(name), server)

        yield create


@pytest.fixture
def database(postgres: Stack, new_database: Callable[[Stack], Database]) -> Database:
    """An empty database on the test stack's PostgreSQL."""
    return new_database(postgres)


@pytest.fixture
def pipeline_name() -> str:
    """A short name, lower case letters and digits, that no other test uses."""
    return f"p{uuid.uuid4().hex[:10]}"


def _drop(server: Stack, name: str) -> None:
    """Drop a database after its slots. A client that comes back between two attempts is ended again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with psycopg.connect(server.conninfo(), autocommit=True) as conn:
                _drop_slots(conn, name)
                conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _drop_slots(conn: psycopg.Connection, database: str) -> None:
    slots = conn.execute(
        "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (database,)
    ).fetchall()
    for slot, pid in slots:
        if pid is not None:
            conn.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
