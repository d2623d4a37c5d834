"""Every statement in the road's sql folder is understood by every server it is meant for."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.pq import ExecStatus

from fix_provision import Site
from outbox_connectors.definition import Payload, TableName
from outbox_pipeline import inserts, provision
from outbox_pipeline import sql as statements
from outbox_pipeline.provision import tables
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import identifiers, relay_names
from outbox_pipeline.servers.postgres import server_major

pytestmark = [pytest.mark.stack, pytest.mark.matrix]

FOLDER = Path(statements.__file__).parent
NAMES = sorted({re.sub(r"_pg\d+$", "", path.stem) for path in FOLDER.glob("*.sql")})
RELAY_QUERIES = {
    name for name in NAMES if name.startswith(("relay_", "switch_", "replay_read")) and "create" not in name
}
INSERTS = {"add_event": inserts.add_event, "add_events": inserts.add_events}
TODAY = date(2026, 11, 29)
BYTEA = TableName("public", "outbox_bytea")
# What the placeholders of a statement stand for, where it is no identifier.
LITERALS = {"slot", "verifier", "first", "behind", "operations", "aggregate_type_pattern"}
WORDS = {
    "partition_by": sql.SQL("PARTITION BY RANGE (occurred_at)"),
    "payload_type": sql.SQL("jsonb"),
    "payload_on_the_wire": sql.SQL("payload::text"),
    "type": sql.SQL("text"),
    "failover": sql.SQL("true"),
    "moment": sql.SQL("occurred_at"),
}


def test_every_statement_is_understood(site: Site) -> None:
    """Let the server parse and analyse each; statements that change objects are only parsed by it."""
    with site.admin() as conn:
        provision.apply_postgres(conn, site.definition)
        for statement in tables.ddl(
            replace(site.definition.outbox, payload=Payload.BYTEA, table=BYTEA), TODAY
        ):
            conn.execute(statement)
        conn.execute(
            "CREATE TABLE x (id bigint, event_id uuid, consumer text, reason text, selection text,"
            " events bigint, road text, why text, only_row boolean, since timestamptz)"
        )  # what other names stand for
        for statement in relay_ddl(site):
            conn.execute(statement)
        refused = {name: reason for name in NAMES if (reason := _refusal(conn, site, name))}
    assert not refused, "\n".join(f"{name}: {reason}" for name, reason in refused.items())


def relay_ddl(site: Site) -> tuple[sql.Composed, ...]:
    nothing = schema.Objects(False, False, False, False, False, None, False, False)
    names, wishes = relay_names(site.definition), schema.SetUpOptions(8, archive=True)
    return schema.plan_objects(nothing, None, names, site.definition.outbox, wishes).sql


def _refusal(conn: psycopg.Connection, site: Site, name: str) -> str:
    if name in INSERTS:
        table = site.definition.outbox.table
        forms = ((Payload.JSONB, table), (None, table), (Payload.BYTEA, BYTEA), (None, BYTEA))
        return " ".join(
            _prepared(conn, _filled(INSERTS[name](payload), into)) for payload, into in forms
        ).strip()
    text = statements.get(name, server_major(conn))
    if name in RELAY_QUERIES:
        places = identifiers(relay_names(site.definition), site.definition.outbox, 8)
        return _prepared(conn, sql.SQL(text).format(**places))
    return _prepared(conn, _filled(text, site.definition.outbox.table))


def _prepared(conn: psycopg.Connection, filled: sql.Composable) -> str:
    result = conn.pgconn.prepare(b"", _numbered(filled.as_string(conn)).encode())
    return "" if result.status == ExecStatus.COMMAND_OK else result.error_message.decode()


def _filled(text: LiteralString, table: TableName) -> sql.Composable:
    parts = [field for _, field, _, _ in string.Formatter().parse(text) if field]
    if not parts:
        return sql.SQL(text)
    return sql.SQL(text).format(**{field: _value(field, table) for field in parts})


def _value(field: str, table: TableName) -> sql.Composable:
    if field == "table":
        return tables.identifier(table)
    if field in WORDS:
        return WORDS[field]
    if field in LITERALS or field.startswith("max_") or field == "limit":
        return sql.Literal("x" if field in LITERALS else 1)
    return sql.Identifier("x")


def _numbered(text: str) -> str:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return re.sub(r"%\((\w+)\)[sb]", number, text).replace("%%", "%")
