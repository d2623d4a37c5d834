"""Process crashes: find an event that crashes the process which handles it, and make it a dead letter.

Attempts counted in memory are lost in a crash, and counting each one in the database would cost a commit
per event. So each process keeps a row while it runs and holds an advisory lock for it in its session. A
process that starts and finds a row without a lock knows that its owner crashed. It handles the next events,
which include the cause, one by one, and commits a count of each attempt before it makes it. An event whose
attempts ended in MAX_CRASHES crashes becomes a dead letter.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import psycopg

from outbox_consumers import sql
from outbox_consumers.event import Event
from outbox_consumers.inbox.claims import PackedIds, cursor_of

log = logging.getLogger("outbox_consumers")

MAX_CRASHES: Final = 3


class CrashedTooOften(Exception):
    """The process crashed repeatedly while it handled an event."""


class ProcessCrashes:
    """Crashed processes of one consumer. `suspects` is how many of the next events may be the cause.

    `disabled`: behind a pooler a process has no session of its own and cannot hold the lock; then no crash
    is found.
    """

    def __init__(
        self, consumer: str, table: str, member: UUID, batch_size: int, *, disabled: bool = False
    ) -> None:
        parts = {
            "inbox": sql.table(table),
            "member": sql.member(table),
            "attempt": sql.attempt(table),
        }
        self.suspects = 0
        self._disabled = disabled
        self._consumer = consumer
        self._member = member
        self._batch_size = batch_size
        self._statements = {name: sql.compose(name, **parts) for name in _STATEMENTS}

    def join(self, conn: psycopg.Connection[Any]) -> None:
        """Register this process. To be called on every new connection, in autocommit mode."""
        if not self._disabled:
            self._run(conn, "join_members", member=self._member)

    def find_crashed(self, conn: psycopg.Connection[Any]) -> None:
        """Find crashed processes and remove their rows. If there are any, suspect the next events."""
        if self._disabled:
            return
        crashed = self._run(conn, "remove_crashed_members", member=self._member).fetchall()
        if crashed:
            self.suspects = self._batch_size
            log.warning("%d processes of this consumer crashed; handling events one by one", len(crashed))

    def leave(self, conn: psycopg.Connection[Any]) -> None:
        """Remove this process: it ends without a crash."""
        if not self._disabled:
            self._run(conn, "leave_members", member=self._member)

    def not_handled(self, conn: psycopg.Connection[Any], events: Sequence[Event]) -> list[Event]:
        """Return the events that are not handled yet. A handled event cannot be the cause of a crash."""
        ids = PackedIds.of([event.packed_id for event in events])
        cursor = cursor_of(conn).execute(
            self._statements["seen_events"], {"consumer": self._consumer, "ids": ids}, binary=True
        )
        seen = {row[0] for row in cursor}
        return [event for event in events if event.packed_id not in seen]

    def count_attempt(self, conn: psycopg.Connection[Any], event: Event) -> int:
        """Count and commit an attempt before it is made. Returns how many there are, this one included."""
        row = self._run(conn, "count_attempt", event_id=event.id).fetchone()
        assert row is not None
        return int(row[0])

    def clear_attempts(self, conn: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        """Delete the counts of events whose attempt did not crash the process."""
        self._run(conn, "clear_attempts", ids=[event.id for event in events])
        self.suspects = max(0, self.suspects - len(events))

    def _run(self, conn: psycopg.Connection[Any], name: str, **values: object) -> psycopg.Cursor[Any]:
        return cursor_of(conn).execute(self._statements[name], {"consumer": self._consumer, **values})


_STATEMENTS: Final = (
    "join_members",
    "remove_crashed_members",
    "leave_members",
    "seen_events",
    "count_attempt",
    "clear_attempts",
)
