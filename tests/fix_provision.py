"""Places to provision: a database, roles and a definition of their own, on a PostgreSQL of any major.

majors         the PostgreSQL majors to try; $OUTBOX_TEST_MAJORS ("14 18") narrows them
server         a PostgreSQL, once for each of them
new_site       new_site(server, outbox={...}): an empty database and a definition for it
site           the same on `server`
untouched      a pipeline on the test stack, with `outboxctl` for it; nothing of it exists yet
own_pipeline   the same, destroyed with its data at the end
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, LiteralString, Protocol

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from fix_stack import Database, Stack
from outbox_connectors.definition import Definition
from outbox_connectors.loading import loads
from outbox_pipeline import cli
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.interruption import Interruption
from outbox_pipeline.servers import postgres

MAJORS = tuple(int(major) for major in os.environ.get("OUTBOX_TEST_MAJORS", "14 15 16 17 18").split())
PROGRAM = Path(sys.executable).with_name("outboxctl")
PASSWORD = "wörd with $ and 'quote'"


@dataclass(frozen=True, slots=True)
class Site:
    """A database to provision, as the superuser unless the definition says otherwise."""

    database: Database
    document: Mapping[str, Any]  # the definition file

    @property
    def definition(self) -> Definition:
        return loads(json.dumps(self.document), source="outbox.yaml", environ={})

    @property
    def writer(self) -> str:
        return self.definition.outbox.writers[0]

    @contextmanager
    def admin(self) -> Iterator[psycopg.Connection[TupleRow]]:
        """Connect as `outboxctl` does."""
        with postgres.connect(
            self.definition.postgres.admin, application_name="test", dbname=self.database.name
        ) as conn:
            yield conn

    def connect(self, user: str, password: str = PASSWORD) -> psycopg.Connection[TupleRow]:
        """Log in as somebody; the caller closes it."""
        conninfo = make_conninfo(self.database.conninfo, user=user, password=password)
        return psycopg.connect(conninfo, autocommit=True)


class NewSite(Protocol):
    """Make a site; keyword arguments are sections of the definition file, laid over its own.

    `password` is the connector's role's; by default one that only a correct verifier lets in.
    """

    def __call__(self, server: Stack, password: str = PASSWORD, **sections: Mapping[str, Any]) -> Site: ...


@pytest.fixture(params=MAJORS, ids=lambda major: f"pg{major}")
def server(request: pytest.FixtureRequest, postgres_server: Callable[[int], Stack]) -> Stack:
    """A PostgreSQL of each major."""
    return postgres_server(request.param)


@pytest.fixture
def own_roles() -> Iterator[Callable[[Stack, str], None]]:
    """Register roles that are dropped after the databases they have rights in."""
    made: list[tuple[Stack, str]] = []
    yield lambda server, role: made.append((server, role))
    for server, role in made:
        with psycopg.connect(server.conninfo(), autocommit=True) as conn:
            conn.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


@pytest.fixture
def new_site(
    own_roles: Callable[[Stack, str], None],
    new_database: Callable[[Stack], Database],
    pipeline_name: str,
) -> NewSite:
    """A factory of sites; the writer's role exists, the connector's does not."""

    def create(server: Stack, password: str = PASSWORD, **sections: Mapping[str, Any]) -> Site:
        database = new_database(server)
        writer, user = f"{pipeline_name}_app", f"{pipeline_name}_cdc"
        own_roles(server, user)
        own_roles(server, writer)
        with database.connect() as conn:
            conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(writer), PASSWORD))
        return Site(database, overlaid(_document(pipeline_name, database, password), sections))

    return create


@pytest.fixture
def site(new_site: NewSite, server: Stack) -> Site:
    """An empty database on each major, and a definition for it."""
    return new_site(server)


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    out: str
    err: str

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A site with its definition file, and `outboxctl` for it."""

    site: Site
    folder: Path

    def changed(self, **sections: Mapping[str, Any]) -> Pipeline:
        """The same pipeline with other sections in its file."""
        document = overlaid(self.site.document, sections)
        return Pipeline(Site(self.site.database, document), self.folder)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `outboxctl` as a process of its own; the caller waits for it."""
        return subprocess.Popen(
            [PROGRAM, "-f", str(self._written()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )

    def run(self, *arguments: str) -> Answer:
        """Run `outboxctl` in this process: a third of a second of imports less than `start`."""
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = cli.run(["-f", str(self._written()), *arguments], Interruption())
        said = out.getvalue() + err.getvalue()
        assert "Traceback" not in said
        for secret in self.secrets():
            assert secret not in said
        return Answer(code, out.getvalue(), err.getvalue())

    def _written(self) -> Path:
        file = self.folder / f"outbox-{len(list(self.folder.iterdir()))}.yaml"
        file.write_text(json.dumps(self.site.document), "utf-8")
        return file

    def secrets(self) -> tuple[str, ...]:
        environ = self.site.database.server.environ
        return environ["PGPASSWORD"], environ["OUTBOX_CDC_PASSWORD"]

    def plan(self) -> dict[str, str]:
        """How every object stands that is not as defined."""
        objects = self.run("--json", "plan").document()["objects"]
        return {f"{o['kind']} {o['name']}": o["state"] for o in objects if o["state"] != "present"}

    def client(self) -> ConnectClient:
        return ConnectClient(self.site.definition.connect)

    def sql(self, text: LiteralString) -> list[Any]:
        name = self.site.definition.postgres
        filled = sql.SQL(text).format(
            publication=sql.Identifier(name.publication), slot=sql.Literal(name.slot)
        )
        with self.site.database.connect() as conn:
            cursor = conn.execute(filled)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def untouched(new_site: NewSite, stack: Stack, tmp_path: Path) -> Pipeline:
    """A pipeline on the test stack of which nothing exists yet, for tests that only look."""
    return Pipeline(new_site(stack, stack.environ["OUTBOX_CDC_PASSWORD"]), tmp_path)


@pytest.fixture
def own_pipeline(untouched: Pipeline) -> Iterator[Pipeline]:
    """A pipeline of its own on the test stack, destroyed with its data at the end."""
    yield untouched
    untouched.run("destroy", "--yes", "--data")


def overlaid(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay changes over a document, mapping by mapping."""
    nested = {
        key: overlaid(document.get(key, {}), value) if isinstance(value, Mapping) else value
        for key, value in changes.items()
    }
    return {**document, **nested}


def _document(name: str, database: Database, password: str) -> dict[str, Any]:
    environ = database.server.environ
    return {
        "pipeline": name,
        "postgres": {
            "admin": database.conninfo,
            "connector": {
                "host": environ["PGHOST"],
                "port": int(environ["PGPORT"]),
                "database": database.name,
                "user": f"{name}_cdc",
                "password": "${env:OUTBOX_CDC_PASSWORD}",
                "role_password": password,
            },
        },
        "outbox": {"writers": [f"{name}_app"]},
        "kafka": {
            "client": {"bootstrap.servers": environ["OUTBOX_KAFKA_BOOTSTRAP"]},
            "topic": f"{name}.{{aggregate_type}}",
            "defaults": {"partitions": 2, "replication_factor": 1},
            "aggregates": {"order": {}},
        },
        "connect": {"url": environ["OUTBOX_CONNECT_URL"]},
    }
