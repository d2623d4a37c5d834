"""Events that kill the process: found although the process cannot tell.

Counting attempts in memory does not help when the process dies with them, and counting each in the
database would cost a commit per event. So a process leaves a row while it runs, guarded by a lock of its
session. Who starts and finds a row without its lock knows that somebody died, and handles the first
events, among which the cause must be, one by one: each attempt is counted, and committed, before it is
made. An event that has seen too many crashes becomes a dead letter.
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
    """An event near which the process died again and again."""


class ProcessCrashes:
    """What one process knows about the crashes of its predecessors. `suspects` counts events down.

    Without a session of its own (`disabled`: behind a pooler) it can hold no lock, and knows nothing.
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
        """Say that this process runs; to be done on every new connection, in autocommit mode."""
        if not self._disabled:
            self._run(conn, "join_members", member=self._member)

    def find_crashed(self, conn: psycopg.Connection[Any]) -> None:
        """Find members that died. Then the next batch is looked at one by one."""
        if self._disabled:
            return
        dead = self._run(conn, "remove_crashed_members", member=self._member).fetchall()
        if dead:
            self.suspects = self._batch_size
            log.warning("%d processes of this consumer died; handling the next events one by one", len(dead))

    def leave(self, conn: psycopg.Connection[Any]) -> None:
        """Say that this process ends in an orderly way."""
        if not self._disabled:
            self._run(conn, "leave_members", member=self._member)

    def not_handled(self, conn: psycopg.Connection[Any], events: Sequence[Event]) -> list[Event]:
        """Leave out the events that are handled already: they killed nobody."""
        ids = PackedIds.of([event.packed_id for event in events])
        cursor = cursor_of(conn).execute(
            self._statements["seen_events"], {"consumer": self._consumer, "ids": ids}, binary=True
        )
        seen = {row[0] for row in cursor}
        return [event for event in events if event.packed_id not in seen]

    def count_attempt(self, conn: psycopg.Connection[Any], event: Event) -> int:
        """Count an attempt, committed before it is made, and say how many there have been."""
        row = self._run(conn, "count_attempt", event_id=event.id).fetchone()
        assert row is not None
        return int(row[0])

    def clear_attempts(self, conn: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        """Forget the attempts of events that are handled or given up."""
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
