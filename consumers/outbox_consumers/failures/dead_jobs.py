"""Dead jobs of a durable inbox: list, redrive and discard them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outbox_consumers.event import Event
from outbox_consumers.failures.dead_letter import DeadLetterFilter, event_of, values_of
from outbox_consumers.inbox import job_tables
from outbox_consumers.inbox.claims import cursor_of


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A job that is not tried any more, with its unchanged event and its last error."""

    position: int
    event: Event
    attempts: int
    created_at: datetime
    died_at: datetime
    error: str


def dead_job(found: dict[str, Any]) -> DeadJob:
    """Read a dead job from its row."""
    return DeadJob(
        found["position"],
        event_of(found),
        found["attempts"],
        found["first_failed_at"],
        found["last_failed_at"],
        found["error"],
    )


def find(conn: psycopg.Connection[Any], wanted: DeadLetterFilter, table: str) -> list[dict[str, Any]]:
    """Read the selected dead jobs, oldest first, with the columns of dead letters."""
    cursor = psycopg.Cursor(conn, row_factory=dict_row)
    return cursor.execute(job_tables.compose("durable_list_dead", table), values_of(wanted)).fetchall()


def redrive(conn: psycopg.Connection[Any], positions: Sequence[int], table: str, rate: float = 0) -> int:
    """Make dead jobs ready again, in their old order. Returns how many there were.

    `rate` is how many become due per second; 0 means all at once. Does not commit.
    """
    values = {"positions": list(positions), "interval": 1 / rate if rate else 0}
    return cursor_of(conn).execute(job_tables.compose("durable_redrive", table), values).rowcount


def discard(conn: psycopg.Connection[Any], positions: Sequence[int], table: str) -> int:
    """Delete dead jobs permanently. Their ids stay claimed. Returns how many there were. Does not commit."""
    values = {"positions": list(positions)}
    return cursor_of(conn).execute(job_tables.compose("durable_discard", table), values).rowcount
