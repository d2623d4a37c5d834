"""The tables that a consumer needs in its own database. Created only on request (`outboxctl inbox init`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row
from psycopg.sql import Composable

from outbox_consumers import sql
from outbox_consumers.errors import InboxUnusable
from outbox_consumers.inbox.claims import DEFAULT_TABLE
from outbox_consumers.inbox.retention import AHEAD, create_day


@dataclass(frozen=True, slots=True)
class Step:
    """One statement, and the object that it creates."""

    kind: str
    name: str
    statement: str


def steps(
    table: str = DEFAULT_TABLE, roles: Sequence[str] = (), today: date | None = None
) -> tuple[Step, ...]:
    """List the steps that create the inbox, in order. Every statement may be run again."""
    today = today or datetime.now(UTC).date()
    days = [today + timedelta(days=n) for n in range(-1, AHEAD.days + 1)]
    parts = sql.tables(table)
    return (
        Step("table", table, _filled("create_inbox", parts)),
        *(Step("partition", f"{table}_p{day:%Y%m%d}", create_day(table, day).decode()) for day in days),
        Step("partition", f"{table}_default", _default(table)),
        Step("table", f"{table}_dead_letter", _filled("create_dead_letter", parts)),
        Step("table", f"{table}_parked", _filled("create_parked", parts)),
        Step("table", f"{table}_journal", _filled("create_journal", parts)),
        Step("table", f"{table}_member", _filled("create_member", parts)),
        Step("table", f"{table}_attempt", _filled("create_attempt", parts)),
        *(
            Step("rights", f"of {role} on {table}", _filled("grant_inbox", parts | {"role": sql.role(role)}))
            for role in roles
        ),
    )


def _filled(name: str, parts: Mapping[str, Composable]) -> str:
    return sql.compose(name, **parts).decode()


def _default(table: str) -> str:
    partition = sql.table(f"{table}_default")
    return sql.compose("create_inbox_default", partition=partition, inbox=sql.table(table)).decode()


def missing(conn: psycopg.Connection[Any], table: str = DEFAULT_TABLE) -> tuple[str, ...]:
    """Return the tables of the inbox that do not exist."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    names = {
        part.as_string(None): table if what == "inbox" else f"{table}_{what}"
        for what, part in sql.tables(table).items()
    }
    found = cursor.execute(sql.get("find_tables"), {"tables": list(names)})
    there = {name for (name,) in found}
    return tuple(name for quoted, name in names.items() if quoted not in there)


def apply(conn: psycopg.Connection[Any], todo: Sequence[Step]) -> None:
    """Run the steps in one transaction and commit it.

    Raises InboxUnusable if there is an inbox of the earlier layout, without partitions.
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
