"""The tables of the durable inbox: their names, how they are created, and whether they exist."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql as composing
from psycopg.rows import tuple_row

from outbox_consumers import sql
from outbox_consumers.inbox.claims import DEFAULT_TABLE
from outbox_consumers.inbox.schema import Step

# The jobs in each index, and the statement that creates it.
INDEXES: Final = {
    "ready": "durable_create_ready_index",
    "head": "durable_create_head_index",
    "behind": "durable_create_behind_index",
    "new": "durable_create_new_index",
    "later": "durable_create_later_index",
    "leased": "durable_create_leased_index",
    "ended": "durable_create_ended_index",
}
# PostgreSQL truncates names to 63 bytes; two truncated names could be the same.
_MAX_BASE_BYTES: Final = 40


def job(inbox: str) -> composing.Identifier:
    """Return the quoted name of an inbox's table of jobs."""
    return sql.table(f"{inbox}_job")


def worker(inbox: str) -> composing.Identifier:
    """Return the quoted name of an inbox's table of workers."""
    return sql.table(f"{inbox}_worker")


def compose(name: str, inbox: str) -> bytes:
    """Return a statement of the job queue with its table names filled in."""
    return sql.compose(name, job=job(inbox), worker=worker(inbox))


def channel(inbox: str, consumer: str) -> str:
    """Return the name of the NOTIFY channel for new jobs. It is short, however long the names are.

    It does not depend on the inbox's schema, since an application may name its inbox with or without it.
    """
    name = inbox.split(".", 1)[-1]
    return "durable_" + hashlib.sha256(f"{name}\0{consumer}".encode()).hexdigest()[:24]


def steps(table: str = DEFAULT_TABLE, roles: Sequence[str] = ()) -> tuple[Step, ...]:
    """List what a durable inbox needs in addition to the inbox. Each statement may run again."""
    indexes = (
        Step("index", name, _index(statement, table, name))
        for statement, name in zip(INDEXES.values(), index_names(table), strict=True)
    )
    grants = (
        Step("rights", f"of {role} on {table}_job", _grant(table, role)) for role in roles
    )  # the identity columns need no grant of their own (PostgreSQL docs, CREATE TABLE)
    return (
        Step("table", f"{table}_job", sql.compose("durable_create_job", job=job(table)).decode()),
        *indexes,
        Step("table", f"{table}_worker", sql.compose("durable_create_worker", worker=worker(table)).decode()),
        *grants,
    )


def missing(conn: psycopg.Connection[Any], table: str = DEFAULT_TABLE) -> tuple[str, ...]:
    """Return the names of the tables of the durable inbox that do not exist."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    names = {job(table).as_string(None): f"{table}_job", worker(table).as_string(None): f"{table}_worker"}
    existing = {name for (name,) in cursor.execute(sql.get("find_tables"), {"tables": list(names)})}
    return tuple(name for quoted, name in names.items() if quoted not in existing)


def index_names(table: str) -> tuple[str, ...]:
    """Return the names of the indexes of the table of jobs, in the order of INDEXES."""
    base = table.split(".", 1)[-1]
    if len(base.encode()) > _MAX_BASE_BYTES:
        base = f"{base[:10]}_{hashlib.sha256(base.encode()).hexdigest()[:16]}"
    return tuple(f"{base}_job_{kind}" for kind in INDEXES)


def _index(statement: str, table: str, name: str) -> str:
    return sql.compose(statement, job=job(table), index=composing.Identifier(name)).decode()


def _grant(table: str, role: str) -> str:
    return sql.compose("durable_grant", job=job(table), worker=worker(table), role=sql.role(role)).decode()
