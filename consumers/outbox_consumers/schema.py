"""The tables a consumer needs in its own database: created on request, never behind anybody's back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from outbox_consumers import sql
from outbox_consumers.errors import InboxUnusable
from outbox_consumers.inbox import DEFAULT_TABLE
from outbox_consumers.retention import AHEAD, create_day


@dataclass(frozen=True, slots=True)
class Step:
    """One statement, and the object it makes."""

    kind: str
    name: str
    statement: str


def steps(
    table: str = DEFAULT_TABLE, roles: Sequence[str] = (), today: date | None = None
) -> tuple[Step, ...]:
    """List what creating the inbox takes, in order. Every statement may be run again."""
    today = today or datetime.now(UTC).date()
    inbox, dead_letter, parked, journal = sql.tables(table)
    days = [today + timedelta(days=n) for n in range(-1, AHEAD.days + 1)]
    return (
        Step("table", table, sql.compose("create_inbox", inbox=inbox).decode()),
        *(Step("partition", f"{table}_p{day:%Y%m%d}", create_day(table, day).decode()) for day in days),
        Step("partition", f"{table}_default", _default(table)),
        *(
            Step("table", name, sql.compose(f"create_{what}", **{what: part}).decode())
            for name, what, part in zip(
                _names(table)[1:],
                ("dead_letter", "parked", "journal"),
                (dead_letter, parked, journal),
                strict=True,
            )
        ),
        *(Step("rights", f"of {role} on {table}", _grant(table, role)) for role in roles),
    )


def _default(table: str) -> str:
    partition = sql.table(f"{table}_default")
    return sql.compose("create_inbox_default", partition=partition, inbox=sql.table(table)).decode()


def _grant(table: str, role: str) -> str:
    inbox, dead_letter, parked, journal = sql.tables(table)
    parts = {"inbox": inbox, "dead_letter": dead_letter, "parked": parked, "journal": journal}
    return sql.compose("grant_inbox", role=sql.role(role), **parts).decode()


def missing(conn: psycopg.Connection[Any], table: str = DEFAULT_TABLE) -> tuple[str, ...]:
    """Name the tables that are not there yet."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    names = {part.as_string(None): name for part, name in zip(sql.tables(table), _names(table), strict=True)}
    found = cursor.execute(sql.get("find_tables"), {"tables": list(names)})
    there = {name for (name,) in found}
    return tuple(name for quoted, name in names.items() if quoted not in there)


def _names(table: str) -> tuple[str, str, str, str]:
    return table, f"{table}_dead_letter", f"{table}_parked", f"{table}_journal"


def apply(conn: psycopg.Connection[Any], todo: Sequence[Step]) -> None:
    """Run the steps in one transaction of their own.

    Raises InboxUnusable when there is an inbox of the earlier, unpartitioned layout.
    """
    try:
        with conn.transaction():
            for step in todo:
                conn.execute(step.statement.encode())
    except (errors.WrongObjectType, errors.InvalidObjectDefinition) as error:
        raise InboxUnusable(
            str(error).splitlines()[0],
            remedy="rename that table, run this again and copy the rows over with INSERT INTO ... SELECT",
        ) from error
