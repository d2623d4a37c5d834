"""Keep the jobs of a key in line: one head, which workers may take, and the others behind it.

A job with a key comes in as `new`. Sorting makes it the head of its queue, or lets it wait; whoever ends
a head makes the next one head in the same transaction. The two may run at the same time:

- A job is only let wait while its head is locked against ending, so whoever ends that head afterwards
  finds it. A head that is being ended just now cannot be locked: then the job stays new for this time.
- One worker at a time sorts, so a queue without a head gets one.
- A unique index lets a queue have one head at most, whatever the code does.

Sorting waits for no row lock. Every statement is simple enough to have one sensible plan, whatever the
statistics say.
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
    """What becomes of new jobs, by position. Those in neither list stay new."""

    heads: list[int]
    behind: list[int]


def place_jobs(new: Sequence[tuple[int, bytes]], heads: dict[bytes, int], locked: set[int]) -> Placement:
    """Decide on new jobs, given in the order of their positions.

    `heads` are the queues that have a head, `locked` the heads that cannot end before we commit.
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
    """The queues of one consumer."""

    def __init__(self, consumer: str, table: str) -> None:
        self._consumer = consumer
        self._read_new = job_tables.compose("durable_read_new", table)
        self._find_heads = job_tables.compose("durable_find_heads", table)
        self._lock_heads = job_tables.compose("durable_lock_heads", table)
        self._set_waiting = job_tables.compose("durable_set_waiting", table)
        self._make_heads = job_tables.compose("durable_make_heads", table)
        self._advance = job_tables.compose("durable_advance", table)

    def sort_new(self, conn: psycopg.Connection[Any]) -> int:
        """Put new jobs in line and say how many there were. The caller is the only one who does so."""
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
        """Make the next job of each queue its head, after the one before has ended in this transaction."""
        named = [queue for queue in queues if queue is not None]
        if named:
            values = {"consumer": self._consumer, "queues": named}
            cursor_of(conn).execute(self._advance, values, prepare=False)

    def _execute(self, conn: psycopg.Connection[Any], statement: bytes, positions: Sequence[int]) -> None:
        if positions:
            cursor_of(conn).execute(statement, {"positions": list(positions)}, prepare=False)
