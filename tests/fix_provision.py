"""Places to provision: a database, roles and a definition of their own, on a PostgreSQL of any major.

majors         the PostgreSQL majors to try; $OUTBOX_TEST_MAJORS ("14 18") narrows them
server         a PostgreSQL, once for each of them
new_site       new_site(server, outbox={...}): an empty database and a definition for it
site           the same on `server`
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from fix_stack import Database, Stack
from outbox_connectors.definition import Definition
from outbox_connectors.loading import loads
from outbox_pipeline import postgres

MAJORS = tuple(int(major) for major in os.environ.get("OUTBOX_TEST_MAJORS", "14 15 16 17 18").split())
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
