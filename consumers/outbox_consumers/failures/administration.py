"""List, redrive and discard the dead letters of consumers and the dead jobs of durable inboxes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from outbox_consumers.failures import dead_jobs, dead_letter
from outbox_consumers.failures.dead_letter import DeadLetterFilter
from outbox_consumers.inbox import job_tables

EVENT: Final = "event"
JOB: Final = "job"


def find(conn: psycopg.Connection[Any], wanted: DeadLetterFilter, table: str) -> list[dict[str, Any]]:
    """Read dead letters and dead jobs, oldest first; `kind` says whether it is an event or a job."""
    found = [{"kind": EVENT} | letter for letter in dead_letter.find(conn, wanted, table)]
    if not job_tables.missing(conn, table):
        found += [{"kind": JOB} | job for job in dead_jobs.find(conn, wanted, table)]
        found.sort(key=lambda one: one["last_failed_at"])
    return found[: wanted.limit]


def redrive(
    conn: psycopg.Connection[Any], found: Sequence[dict[str, Any]], table: str, rate: float = 0
) -> None:
    """Return these to consumers and workers, which take them within about a second of the commit.

    `rate` is how many become due per second; 0 means all at once. The order per key is kept. Does not commit.
    """
    letters, jobs = _positions(found)
    if letters:
        dead_letter.redrive(conn, letters, table, rate)
    if jobs:
        dead_jobs.redrive(conn, jobs, table, rate)


def discard(conn: psycopg.Connection[Any], found: Sequence[dict[str, Any]], table: str) -> None:
    """Delete these permanently; their ids count as handled. Does not commit."""
    letters, jobs = _positions(found)
    if letters:
        dead_letter.discard(conn, letters, table)
    if jobs:
        dead_jobs.discard(conn, jobs, table)


def _positions(found: Sequence[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Return the positions of the dead letters and of the dead jobs."""
    letters = [one["position"] for one in found if one["kind"] == EVENT]
    return letters, [one["position"] for one in found if one["kind"] == JOB]
