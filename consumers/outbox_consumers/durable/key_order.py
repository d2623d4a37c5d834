"""The order of jobs with the same key: each queue has one head, which workers may take; the others wait.

A job with a key is inserted as `new`. Sorting makes it the head of its queue or sets it to `waiting`. The
worker that ends a head makes the next job the head in the same transaction. Both may run concurrently:

- A job is set to `waiting` only while its head is locked, so the worker that ends the head afterwards sees
  the waiting job. If the head is being ended and cannot be locked, the job stays new until the next sorting.
- Only one worker sorts at a time, so a queue without a head gets exactly one.
- A unique index guarantees that no queue has two heads.

Sorting never waits for a row lock. Each statement is simple enough to get the same good plan with any
table statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from outbox_consumers.inbox import job_tables
from outbox_consumers.inbox.claims import cursor_of

SORT_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Placement:
    """The new states of new jobs, by position. Jobs in neither list stay new."""

    heads: list[int]
    behind: list[int]


def place_jobs(new: Sequence[tuple[int, bytes]], heads: dict[bytes, int], locked: set[int]) -> Placement:
    """Decide which new jobs become heads and which wait. `new` is in the order of positions.

    `heads` maps queues to the positions of their heads; `locked` are the heads that this transaction has
    locked, so that they cannot end before it commits.
    """
    made: dict[bytes, int] = {}
    behind: list[int] = []
    for position, queue in new:
        head = heads.get(queue)
        if head is None and queue not in made:
            made[queue] = position
        elif head is None or head in locked:
            behind.append(position)
    return Placement(list(made.values()), behind)


class KeyQueues:
    """The queues of one consumer. Nothing here commits."""

    def __init__(self, consumer: str, table: str) -> None:
        self._consumer = consumer
        self._read_new = job_tables.compose("durable_read_new", table)
        self._find_heads = job_tables.compose("durable_find_heads", table)
        self._lock_heads = job_tables.compose("durable_lock_heads", table)
        self._set_waiting = job_tables.compose("durable_set_waiting", table)
        self._make_heads = job_tables.compose("durable_make_heads", table)
        self._advance = job_tables.compose("durable_advance", table)

    def sort_new(self, conn: psycopg.Connection[Any]) -> int:
        """Sort new jobs into their queues; return their number. The caller must hold the sorting lock."""
        cursor = cursor_of(conn)
        values = {"consumer": self._consumer, "limit": SORT_AT_ONCE}
        new = cursor.execute(self._read_new, values, prepare=False).fetchall()
        if not new:
            return 0
        queues = list(dict.fromkeys(queue for _, queue in new))
        found = cursor.execute(
            self._find_heads, {"consumer": self._consumer, "queues": queues}, prepare=False
        ).fetchall()
        heads = {queue: head for queue, (head,) in zip(queues, found, strict=True) if head is not None}
        locked: set[int] = set()
        if heads:
            cursor.execute(self._lock_heads, {"positions": list(heads.values())}, prepare=False)
            locked = {position for (position,) in cursor}
        decided = place_jobs(new, heads, locked)
        self._execute(conn, self._make_heads, decided.heads)
        self._execute(conn, self._set_waiting, decided.behind)
        return len(new)

    def advance(self, conn: psycopg.Connection[Any], queues: Sequence[bytes | None]) -> None:
        """Make the next job of each queue its head, after this transaction has ended the previous head."""
        named = [queue for queue in queues if queue is not None]
        if named:
            values = {"consumer": self._consumer, "queues": named}
            cursor_of(conn).execute(self._advance, values, prepare=False)

    def _execute(self, conn: psycopg.Connection[Any], statement: bytes, positions: Sequence[int]) -> None:
        if positions:
            cursor_of(conn).execute(statement, {"positions": list(positions)}, prepare=False)
