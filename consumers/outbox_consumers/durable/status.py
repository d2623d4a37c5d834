"""The state of a durable inbox: its jobs by state, and its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from outbox_consumers.durable.jobs import missing
from outbox_consumers.inbox import job_tables


@dataclass(frozen=True, slots=True)
class Count:
    """The number of jobs in one state, and the age of the oldest in seconds."""

    jobs: int
    oldest: float


def states(
    conn: psycopg.Connection[Any], table: str, consumer: str | None = None
) -> dict[str, dict[str, Count]]:
    """Count jobs by consumer and state. Reads the whole table. Raises InboxUnusable if it is missing."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    try:
        cursor.execute(job_tables.compose("durable_status", table), {"consumer": consumer})
    except errors.UndefinedTable:
        raise missing(table) from None
    found: dict[str, dict[str, Count]] = {}
    for name, state, jobs, oldest in cursor:
        found.setdefault(name, {})[state] = Count(jobs, oldest)
    return found


def workers(conn: psycopg.Connection[Any], table: str) -> dict[str, int]:
    """Count the workers of each consumer that hold a lease."""
    cursor = psycopg.Cursor(conn, row_factory=tuple_row)
    return dict(cursor.execute(job_tables.compose("durable_count_workers", table)).fetchall())
