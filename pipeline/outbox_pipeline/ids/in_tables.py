"""Read ids out of tables, packed by the server: a row of the answer holds thousands of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Failed
from outbox_pipeline.ids.spool import Spool

Connection = psycopg.Connection[TupleRow]
PAGES: Final = 4096  # of 8 kB: read at once, so that the answer stays small


def read(
    conn: Connection,
    tables: Sequence[sql.Identifier],
    since: datetime | None,
    into: Spool,
    *,
    until: int | None = None,
) -> None:
    """Read the ids of rows from one snapshot of all tables.

    `since`: only of events that occurred later; `until`: only of rows up to this position. Uses a
    transaction of its own, read only. Raises psycopg errors.
    """
    _read(conn, "ids_read_rows", tables, {"since": since, "until": until}, into)


def read_applied(conn: Connection, inbox: sql.Identifier, consumer: str | None, into: Spool) -> None:
    """Read the ids a consumer has applied. Raises Failed where there is no such inbox."""
    try:
        _read(conn, "ids_read_inbox", [inbox], {"consumer": consumer}, into)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        problem = error.diag.message_primary or "there is no such inbox"
        raise Failed(problem, remedy="name the inbox with --inbox-table") from error


def _read(
    conn: Connection,
    name: LiteralString,
    tables: Sequence[sql.Identifier],
    values: Mapping[str, Any],
    into: Spool,
) -> None:
    """Run a query on range after range of pages, in one snapshot: no row is read twice or left out."""
    with conn.transaction(), conn.cursor(binary=True) as cursor:
        cursor.execute(statements.get("audit_one_snapshot"))
        for table in tables:
            of = {"name": table.as_string(conn)}
            pages = cursor.execute(statements.get("ids_read_pages"), of).fetchone()
            query = sql.SQL(statements.get(name)).format(table=table, inbox=table)
            for page in range(0, pages[0] if pages else 0, PAGES):
                ends = {"from_row": f"({page},0)", "to_row": f"({page + PAGES},0)"}
                for bucket, packed in cursor.execute(query, {**values, **ends}, binary=True):
                    into.put(bucket, packed)
