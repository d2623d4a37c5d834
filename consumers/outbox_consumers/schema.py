"""The tables a consumer needs in its own database: created on request, never behind anybody's back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from outbox_consumers import sql
from outbox_consumers.inbox import DEFAULT_TABLE


@dataclass(frozen=True, slots=True)
class Step:
    """One statement, and what it does."""

    what: str
    statement: str


def steps(table: str = DEFAULT_TABLE, roles: Sequence[str] = ()) -> tuple[Step, ...]:
    """List what creating the inbox takes, in order. Every statement may be run again."""
    inbox = sql.table(table)
    create = Step(f"table {table}", sql.compose("create_inbox", inbox=inbox).decode())
    grants = (
        Step(
            f"rights of {role} on {table}",
            sql.compose("grant_inbox", inbox=inbox, role=sql.role(role)).decode(),
        )
        for role in roles
    )
    return create, *grants


def present(conn: psycopg.Connection[Any], table: str = DEFAULT_TABLE) -> bool:
    """Say whether the inbox table exists."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    row = cursor.execute(sql.get("find_table"), {"table": sql.table(table).as_string(None)}).fetchone()
    return row is not None and bool(row[0])


def apply(conn: psycopg.Connection[Any], todo: Sequence[Step]) -> None:
    """Run the steps in one transaction of their own."""
    with conn.transaction():
        for step in todo:
            conn.execute(step.statement.encode())
