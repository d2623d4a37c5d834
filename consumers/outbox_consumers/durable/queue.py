"""The queue of jobs as a worker uses it. Nothing here commits; every change is fenced by lease and token.

States of a job:

ready      may be taken                      waiting    behind the head of its queue
leased     taken by a worker                 new        has a key, not yet sorted into its queue
later      not due yet                       done/dead  ended, but kept
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from outbox_consumers.durable.jobs import LeasedJob, leased_job
from outbox_consumers.durable.key_order import KeyQueues
from outbox_consumers.inbox import job_tables
from outbox_consumers.inbox.claims import cursor_of

ACTIVATE_AT_ONCE: Final = 1000
PURGE_AT_ONCE: Final = 1000


class JobQueue:
    """The jobs of one consumer.

    Statements are not prepared: a plan made while the table was empty would be kept for the whole session
    and read a million rows later.
    """

    def __init__(self, consumer: str, table: str, keep: float) -> None:
        self._consumer = consumer
        self._keep = keep
        self._lock_sorting = job_tables.compose("durable_lock_sorting", table)
        self._activate = job_tables.compose("durable_make_due_ready", table)
        self._take = job_tables.compose("durable_take", table)
        self._finish = job_tables.compose("durable_finish_keeping" if keep else "durable_finish", table)
        self._give_back = job_tables.compose("durable_give_back", table)
        self._fail = job_tables.compose("durable_fail", table)
        self._mark_dead = job_tables.compose("durable_mark_dead", table)
        self._key_queues = KeyQueues(consumer, table)
        self._purge = job_tables.compose("durable_purge", table)
        self._lock_name = f"{table}/{consumer}"

    def sort_new(self, conn: psycopg.Connection[Any]) -> int:
        """Sort new jobs into their queues unless another worker is doing so; return how many were new."""
        mine = cursor_of(conn).execute(self._lock_sorting, {"queue": self._lock_name}).fetchone()
        return self._key_queues.sort_new(conn) if mine and mine[0] else 0

    def activate_due(self, conn: psycopg.Connection[Any]) -> int:
        """Make jobs ready that are due; return how many."""
        values = {"consumer": self._consumer, "limit": ACTIVATE_AT_ONCE}
        return cursor_of(conn).execute(self._activate, values, prepare=False).rowcount

    def take(self, conn: psycopg.Connection[Any], worker: int, limit: int) -> list[LeasedJob]:
        """Lease up to `limit` jobs, highest priority first. Empty if the worker is not registered."""
        cursor = psycopg.Cursor(conn, row_factory=dict_row)
        values = {"consumer": self._consumer, "worker": worker, "limit": limit}
        cursor.execute(self._take, values, prepare=False)
        return sorted((leased_job(found) for found in cursor), key=lambda job: (-job.priority, job.position))

    def finish(self, conn: psycopg.Connection[Any], worker: int, jobs: Sequence[LeasedJob]) -> int:
        """End handled jobs; return how many of them this worker still held."""
        ended = cursor_of(conn).execute(self._finish, _fences(worker, jobs), prepare=False).fetchall()
        self._key_queues.advance(conn, [queue for (queue,) in ended])
        return len(ended)

    def fail(
        self,
        conn: psycopg.Connection[Any],
        worker: int,
        job: LeasedJob,
        attempts: int,
        error: str,
        delay: float,
    ) -> bool:
        """Schedule another attempt in `delay` seconds. False if this worker no longer holds the job."""
        values = _fence(worker, job) | {"attempts": attempts, "error": error, "delay": delay}
        return cursor_of(conn).execute(self._fail, values).rowcount == 1

    def mark_dead(
        self, conn: psycopg.Connection[Any], worker: int, job: LeasedJob, attempts: int, error: str
    ) -> bool:
        """Make a job dead: it is kept, but not tried again. False if this worker no longer holds it."""
        values = _fence(worker, job) | {"attempts": attempts, "error": error}
        ended = cursor_of(conn).execute(self._mark_dead, values).fetchall()
        self._key_queues.advance(conn, [queue for (queue,) in ended])
        return len(ended) == 1

    def give_back(
        self, conn: psycopg.Connection[Any], worker: int, jobs: Sequence[LeasedJob], delay: float = 0
    ) -> int:
        """Make unhandled jobs ready for others in `delay` seconds; return how many this worker still held."""
        values = _fences(worker, jobs) | {"delay": delay}
        return cursor_of(conn).execute(self._give_back, values, prepare=False).rowcount

    def purge(self, conn: psycopg.Connection[Any]) -> int:
        """Remove up to PURGE_AT_ONCE done jobs that were kept long enough; return how many."""
        if not self._keep:
            return 0
        values = {"consumer": self._consumer, "keep": self._keep, "limit": PURGE_AT_ONCE}
        return cursor_of(conn).execute(self._purge, values, prepare=False).rowcount


def _fences(worker: int, jobs: Sequence[LeasedJob]) -> dict[str, object]:
    return {
        "worker": worker,
        "positions": [job.position for job in jobs],
        "tokens": [job.token for job in jobs],
    }


def _fence(worker: int, job: LeasedJob) -> dict[str, object]:
    return {"worker": worker, "position": job.position, "token": job.token}
