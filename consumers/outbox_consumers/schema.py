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
    """One statement, and the object it makes."""

    kind: str
    name: str
    statement: str


def steps(table: str = DEFAULT_TABLE, roles: Sequence[str] = ()) -> tuple[Step, ...]:
    """List what creating the inbox takes, in order. Every statement may be run again."""
    inbox, dead_letter, parked = sql.tables(table)
    _, dead, waiting = _names(table)
    creates = (
        Step("table", table, sql.compose("create_inbox", inbox=inbox).decode()),
        Step("table", dead, sql.compose("create_dead_letter", dead_letter=dead_letter).decode()),
        Step("table", waiting, sql.compose("create_parked", parked=parked).decode()),
    )
    grants = (
        Step(
            "rights",
            f"of {role} on {table}",
            sql.compose(
                "grant_inbox", inbox=inbox, dead_letter=dead_letter, parked=parked, role=sql.role(role)
            ).decode(),
        )
        for role in roles
    )
    return *creates, *grants


def missing(conn: psycopg.Connection[Any], table: str = DEFAULT_TABLE) -> tuple[str, ...]:
    """Name the tables that are not there yet."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    names = {part.as_string(None): name for part, name in zip(sql.tables(table), _names(table), strict=True)}
    found = cursor.execute(sql.get("find_tables"), {"tables": list(names)})
    there = {name for (name,) in found}
    return tuple(name for quoted, name in names.items() if quoted not in there)


def _names(table: str) -> tuple[str, str, str]:
    return table, f"{table}_dead_letter", f"{table}_parked"


def apply(conn: psycopg.Connection[Any], todo: Sequence[Step]) -> None:
    """Run the steps in one transaction of their own."""
    with conn.transaction():
        for step in todo:
            conn.execute(step.statement.encode())
