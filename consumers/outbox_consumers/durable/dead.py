"""For people: jobs that were given up. Look at them, let them be tried again, or forget them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outbox_consumers.dead_letter import message_of
from outbox_consumers.durable import tables
from outbox_consumers.event import Event
from outbox_consumers.inbox import cursor_of


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that was given up, its event as it came, and why."""

    position: int
    event: Event
    attempts: int
    created_at: datetime
    died_at: datetime
    error: str


def find(
    conn: psycopg.Connection[Any], consumer: str, table: str, event_type: str | None, limit: int | None
) -> list[DeadJob]:
    """Read dead jobs, the longest dead first."""
    cursor = psycopg.Cursor(conn, row_factory=dict_row)
    values = {"consumer": consumer, "event_type": event_type, "limit": limit}
    cursor.execute(tables.compose("durable_list_dead", table), values)
    return [
        DeadJob(
            found["position"],
            Event.of(message_of(found)),
            found["attempts"],
            found["created_at"],
            found["ended_at"],
            found["error"] or "",
        )
        for found in cursor
    ]


def redrive(conn: psycopg.Connection[Any], consumer: str, table: str, positions: Sequence[int]) -> int:
    """Let dead jobs be tried again, in their old order; say how many there were."""
    statement = tables.compose("durable_redrive", table)
    return cursor_of(conn).execute(statement, {"consumer": consumer, "positions": list(positions)}).rowcount


def discard(conn: psycopg.Connection[Any], consumer: str, table: str, positions: Sequence[int]) -> int:
    """Forget dead jobs for good; say how many there were. Their ids stay claimed."""
    statement = tables.compose("durable_discard", table)
    return cursor_of(conn).execute(statement, {"consumer": consumer, "positions": list(positions)}).rowcount
