"""Every statement of the sql folders that PostgreSQL can prepare is prepared, on every supported server.

What it cannot prepare (DDL, SET, LISTEN) is run by the tests of whoever uses it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from fix_stack import Database, Stack
from outbox_connectors import loading
from outbox_connectors.definition import Payload, TableName
from outbox_consumers import schema
from outbox_consumers import sql as consumer_sql
from outbox_pipeline import sql as pipeline_sql
from outbox_pipeline.provision import tables
from outbox_pipeline.relay import names as relay_names

MAJORS = [int(major) for major in os.environ.get("OUTBOX_TEST_MAJORS", "0").split()]
OUTBOX = loading.load(Path(__file__).parents[2] / "connectors" / "outbox.yaml", {}).outbox
BINARY = replace(OUTBOX, table=TableName("public", "binary_outbox"), payload=Payload.BYTEA)

# What callers put in for the placeholders.
FILL = {
    "table": "public.outbox",
    "slot": "'s'",
    "failover": "true",
    "batch": "relay_batch",
    "dead_letter": "relay_dead_letter",
    "settings": "relay_settings",
    "pipeline": "'shop'",
    "shards": "4",
    "shard_of": relay_names.shard_of(4).as_string(None),
    "payload_on_the_wire": "payload::text",
    "payload_type": "jsonb",
}
CONSUMER_FILL = {"inbox": "inbox", "dead_letter": "inbox_dead_letter", "parked": "inbox_parked"}
RELAY_TABLES = ("relay_create_batch", "relay_create_dead_letter", "relay_create_settings")

PREPARABLE = re.compile(r"(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
PARAMETER = re.compile(r"%\((\w+)\)[sbt]")

pytestmark = [pytest.mark.stack, pytest.mark.matrix]


def stems(package: ModuleType) -> list[str]:
    """The names of a package's statements, without the suffix of a variant."""
    files = Path(str(package.__file__)).parent.glob("*.sql")
    return sorted({re.sub(r"_pg\d+$", "", file.stem) for file in files})


def filled(text: str, fill: dict[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: fill[found[1]], text)


def numbered(text: str) -> str:
    """Write the parameters as PREPARE wants them: $1, $2, ..., the same name the same number."""
    numbers: dict[str, int] = {}
    text = PARAMETER.sub(lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}", text)
    return text.replace("%%", "%")


def body(text: str) -> str:
    return re.sub(r"^--.*\n", "", text, flags=re.M).strip()


@pytest.fixture(params=MAJORS, ids=lambda major: f"postgres-{major}" if major else "postgres")
def conn(
    request: pytest.FixtureRequest,
    new_database: Callable[[Stack], Database],
    postgres_server: Callable[[int], Stack],
) -> Iterator[psycopg.Connection]:
    server = postgres_server(request.param) if request.param else request.getfixturevalue("postgres")
    with new_database(server).connect() as conn:
        for outbox in (OUTBOX, BINARY):
            for statement in tables.ddl(outbox, date(2026, 11, 29)):
                conn.execute(statement)
        for name in RELAY_TABLES:
            conn.execute(filled(pipeline_sql.get(name), FILL).encode())
        schema.apply(conn, schema.steps())
        yield conn


def refused(conn: psycopg.Connection, text: str) -> str:
    """Say why the server does not prepare a statement; empty when it does.

    A parameter whose type the server cannot tell is declared as text: psycopg sends a type with it.
    """
    types = ["unknown"] * len(set(PARAMETER.findall(text)))
    while True:
        declared = f"({', '.join(types)})" if types else ""
        try:
            conn.execute(f"PREPARE candidate {declared} AS {numbered(text)}".encode())
        except psycopg.errors.IndeterminateDatatype as error:
            found = re.search(r"parameter \$(\d+)", str(error))
            assert found is not None
            types[int(found[1]) - 1] = "text"
        except psycopg.Error as error:
            return str(error).splitlines()[0]
        else:
            conn.execute("DEALLOCATE candidate")
            return ""


def test_every_statement_of_the_road_can_be_prepared(conn: psycopg.Connection) -> None:
    major = conn.info.server_version // 10000
    problems = {}
    for name in stems(pipeline_sql):
        fill = {**FILL, "table": "binary_outbox"} if name.endswith("_bytea") else FILL
        text = body(pipeline_sql.get(name, major))
        if PREPARABLE.match(text):
            problems[name] = refused(conn, filled(text, fill))
    assert {name: problem for name, problem in problems.items() if problem} == {}
    assert len(problems) > 30


def test_every_statement_of_the_far_side_can_be_prepared(conn: psycopg.Connection) -> None:
    texts = {name: body(consumer_sql.get(name)) for name in stems(consumer_sql)}
    problems = {
        name: refused(conn, filled(text, CONSUMER_FILL))
        for name, text in texts.items()
        if PREPARABLE.match(text)
    }
    assert {name: problem for name, problem in problems.items() if problem} == {}
    assert len(problems) > 5
