"""The relay's dead letters, rows that can never be published: list, requeue or discard them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, dict_row

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Failed
from outbox_pipeline.relay.names import identifiers, relay_names
from outbox_pipeline.relay.session import read_settings

Connection = psycopg.Connection[TupleRow]


def find(
    conn: Connection,
    definition: Definition,
    *,
    event_id: UUID | None = None,
    aggregate_id: str | None = None,
    limit: int = 1000,
) -> list[dict[str, Any]]:
    """List dead letters, those that failed first in front. Raises Failed where there is no relay."""
    values = {"id": event_id, "aggregate_id": aggregate_id, "limit": limit}
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_statement(conn, definition, "relay_list_dead_letters"), values).fetchall()


def requeue(conn: Connection, definition: Definition, ids: Sequence[str]) -> int:
    """Put dead letters back at their places; their aggregates go on from there. One statement.

    Raises Failed for a row that the table refuses: correct the row in the dead letters first.
    """
    try:
        return _change(conn, definition, "relay_requeue_dead_letters", ids)
    except psycopg.errors.IntegrityError as error:
        raise Failed(
            error.diag.message_primary or "the outbox refuses the row",
            where=f"table {definition.outbox.table}",
            remedy="mend the row in the dead letters, or discard it",
        ) from error


def discard(conn: Connection, definition: Definition, ids: Sequence[str]) -> int:
    """Delete dead letters for good; their aggregates go on without them. One statement."""
    return _change(conn, definition, "relay_discard_dead_letters", ids)


def _change(conn: Connection, definition: Definition, name: LiteralString, ids: Sequence[str]) -> int:
    return len(conn.execute(_statement(conn, definition, name), {"ids": list(ids)}).fetchall())


def _statement(conn: Connection, definition: Definition, name: LiteralString) -> sql.Composed:
    names = relay_names(definition)
    settings = read_settings(conn, names)
    if settings is None:
        raise Failed(
            f"outbox {definition.outbox.table} is not set up for a relay", remedy="run outboxctl relay --init"
        )
    return sql.SQL(statements.get(name)).format(**identifiers(names, definition.outbox, settings[1]))
