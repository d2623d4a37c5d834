"""The command line behind PgBouncer: it changes no session that others use, and says why it will not work."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fix_pooler import PGBOUNCER, left_in, pgbouncer
from fix_provision import Pipeline
from outbox_connectors.definition import Secret
from outbox_pipeline.errors import ExitCode, Refused
from outbox_pipeline.servers import postgres

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer here (a package of that name has it)"),
]

LOOKING = (
    ("status", "--interval", "0.2", "--no-history"),
    ("--json", "status", "--interval", "0.2", "--no-history"),
    ("slots",),
    ("doctor",),
    ("plan",),
    ("audit",),
    ("dead-letters", "outbox", "list"),
    ("prune", "--dry-run"),
    ("recover", "--dry-run"),
    ("watch", "--no-history"),
)
FORGOTTEN = ("--consumer", "c", "--reason", "test", "--since", "2026-01-01")
CHANGING = (
    ("apply",),
    ("send", "order", "1", "Placed", "{}"),
    ("relay", "--init"),
    ("relay", "--until-empty"),
    ("recover",),
    ("switch", "--to", "relay"),
    ("prune",),
    ("replay", "--id", str(uuid.UUID(int=7)), "--reason", "test"),
    ("watch", "--tick-only", "--once"),
    ("destroy", "--yes", "--data"),
)


def dsn_of(pipeline: Pipeline) -> str:
    server = pipeline.site.database.server
    return make_conninfo(pipeline.site.database.conninfo, password=server.environ["PGPASSWORD"])


def write(dsn: str, n: int) -> list[str]:
    """Be a service that writes through the pool: n transactions; give what went wrong."""
    failures = []
    for _ in range(n):
        try:
            with psycopg.connect(dsn, prepare_threshold=None) as conn:
                conn.execute("INSERT INTO app_rows VALUES (1)")
        except psycopg.Error as error:
            failures.append(str(error))
    return failures


def test_commands_refuse_a_pooler_and_leave_nothing_in_its_sessions(
    untouched: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> None:
    untouched.sql("CREATE TABLE app_rows (n integer)")
    folder = tmp_path_factory.mktemp("pooler")
    name = untouched.site.database.name
    with pgbouncer(dsn_of(untouched), folder, name=name, size=1) as dsn, ThreadPoolExecutor(4) as writers:
        pooled = untouched.changed(postgres={"admin": dsn})
        before = left_in(dsn)
        objects = untouched.sql("SELECT count(*) FROM pg_class")
        for command in (*LOOKING, *LOOKING, *CHANGING):
            writing = [writers.submit(write, dsn, 3) for _ in range(4)]
            answer = pooled.run(*command)
            said = f"{command}: {answer.code} {answer.out} {answer.err}"
            assert answer.code == ExitCode.REFUSED, said
            assert "needs a session of its own: point postgres.admin at the server" in answer.err, said
            assert answer.err.count("\n") == answer.err.count("needs a session") == 1, said
            assert [failure for done in writing for failure in done.result()] == [], said
            assert left_in(dsn) == before, said
        assert untouched.sql("SELECT count(*) FROM pg_class") == objects
        written = 12 * len((*LOOKING, *LOOKING, *CHANGING))
        assert untouched.sql("SELECT count(*) FROM app_rows") == [(written,)]


def test_the_commands_of_a_consumers_database_leave_nothing_in_a_pool(
    untouched: Pipeline, tmp_path: Path
) -> None:
    with pgbouncer(dsn_of(untouched), tmp_path, size=1) as dsn:
        before = left_in(dsn)
        for command in (
            ("inbox", "init", "--dsn", dsn, "--durable"),
            ("inbox", "status", "--dsn", dsn),
            ("inbox", "forget", "--dsn", dsn, *FORGOTTEN, "--yes"),
            ("dead-letters", "list", "--dsn", dsn),
            ("dead-letters", "redrive", "--dsn", dsn),
            ("dead-letters", "discard", "--dsn", dsn, "--yes"),
        ):
            for _ in range(7):  # psycopg prepares what it sends for the sixth time
                answer = untouched.run(*command)
                assert answer.code == ExitCode.OK, f"{command}: {answer.out} {answer.err}"
            assert left_in(dsn) == before, command


@pytest.mark.parametrize("size", [1, 2, 20])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pool_of_any_size_is_noticed(untouched: Pipeline, tmp_path: Path, mode: str, size: int) -> None:
    with pgbouncer(dsn_of(untouched), tmp_path, mode=mode, size=size) as dsn:
        with ThreadPoolExecutor(4) as crowd:
            list(crowd.map(lambda _: left_in_statement_mode(dsn), range(8)))
        for _ in range(10):
            with pytest.raises(Refused, match="needs a session of its own"):
                postgres.connect(Secret(dsn), application_name="test")


def left_in_statement_mode(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT pg_sleep(0.1)")


def test_a_pool_that_lends_whole_sessions_serves_as_the_server_does(
    untouched: Pipeline, tmp_path: Path
) -> None:
    """PgBouncer resets a session before the next client (server_reset_query)."""
    with pgbouncer(dsn_of(untouched), tmp_path, name=untouched.site.database.name, mode="session") as dsn:
        with (
            psycopg.connect(dsn) as lent,
            postgres.connect(Secret(dsn), application_name="test") as conn,
        ):  # both are lent: the second connection that tells them apart gets none
            lent.execute("SELECT 1")
            assert conn.execute("SELECT 1").fetchone() == (1,)
        pooled = untouched.changed(postgres={"admin": dsn})
        assert pooled.run("slots").code != ExitCode.REFUSED
