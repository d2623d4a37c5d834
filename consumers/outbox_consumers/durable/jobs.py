"""Jobs: events with a place in a queue, as rows and as what a worker has in hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import errors
from uuid_utils.compat import uuid7

from outbox_consumers.errors import InboxUnusable, UsageError
from outbox_consumers.event import Event
from outbox_consumers.failures.dead_letter import FailureHistory, event_of, row
from outbox_consumers.inbox import job_tables
from outbox_consumers.inbox.claims import PackedIds, cursor_of

PRIORITIES: Final = range(-32768, 32768)  # smallint
_LONGEST_QUEUE: Final = 256  # an index entry holds 2,700 bytes at most; a key may be longer
_NO_FAILURES: Final = FailureHistory()


@dataclass(frozen=True, slots=True)
class Job:
    """A job to be put into a queue: `Job("SendInvoice", {"order": 42}, key="42")`.

    Jobs of one key are handled in the order they were put in, one at a time; an empty key waits for
    nobody. Higher `priority` goes first, within one priority the older job. `run_at` is the earliest
    time to run (aware datetime). `id` makes a job that is put in twice one job; without it each put is a
    job of its own.
    """

    type: str
    data: Any = None
    key: str = ""
    id: UUID | None = None
    priority: int = 0
    run_at: datetime | None = None
    headers: Mapping[str, Any] | None = None
    version: int = field(default=1)

    def __post_init__(self) -> None:
        if not self.type or "\0" in self.type:
            raise UsageError("a job needs a type", remedy='write put(conn, "SendInvoice", ...)')
        if not isinstance(self.key, str):
            raise UsageError(f"key={self.key!r} is no text", remedy="pass str(...) of it")
        if self.id is not None and not self.id.int:
            raise UsageError("id is the nil UUID, which identifies nothing", remedy="leave it out")
        if self.priority not in PRIORITIES:
            raise UsageError(f"priority={self.priority}: from -32768 to 32767")
        if self.run_at is not None and self.run_at.tzinfo is None:
            raise UsageError(
                f"run_at={self.run_at} has no time zone",
                remedy="pass an aware datetime, for example datetime.now(UTC)",
            )

    def event(self) -> Event:
        """Make the event that the handler will see. Raises UsageError for data that JSON cannot hold."""
        try:
            return Event(
                self.type,
                self.data,
                id=self.id or uuid7(),
                key=self.key,
                version=self.version,
                headers=self.headers,
                topic="",
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"the data of job {self.type} is no JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job in the hands of a worker. `token` tells this lease from every other one of the job."""

    position: int
    token: int
    attempts: int
    suspect: bool
    priority: int
    event: Event


def leased_job(found: dict[str, Any]) -> LeasedJob:
    """Make what a worker has in hand of the row it has taken."""
    event = event_of(found)
    event._attempt = found["attempts"] + 1
    return LeasedJob(
        found["position"], found["taken"], found["attempts"], found["suspect"], found["priority"], event
    )


def queue_of(event: Event) -> bytes | None:
    """Name the queue of an event: its topic and key. None for one without a key."""
    key = event.message.key()
    if not key:
        return None
    queue = (event.message.topic() or "").encode() + b"\0" + key
    return queue if len(queue) <= _LONGEST_QUEUE else hashlib.sha256(queue).digest()


class JobWriter:
    """Puts jobs into the queue of one consumer, through any connection and in its transaction."""

    def __init__(self, consumer: str, table: str, notify: bool) -> None:
        self._notifies = notify
        self._consumer = consumer
        self._table = table
        self._channel = job_tables.channel(table, consumer)
        self._enqueue = job_tables.compose("durable_enqueue", table)
        self._notify = job_tables.compose("durable_notify", table)

    def enqueue(
        self, conn: psycopg.Connection[Any], events: Sequence[Event], jobs: Sequence[Job] | None = None
    ) -> None:
        """Put events in, in order, and wake the workers on commit. Raises InboxUnusable without a table."""
        cursor = cursor_of(conn)
        try:
            cursor.execute(self._enqueue, columns(self._consumer, events, jobs), prepare=False)
        except errors.UndefinedTable:
            raise missing(self._table) from None
        self.notify(conn)

    def notify(self, conn: psycopg.Connection[Any]) -> None:
        """Wake the workers when the transaction commits."""
        if self._notifies:
            cursor_of(conn).execute(self._notify, {"channel": self._channel})


def missing(table: str) -> InboxUnusable:
    """Say that there is no table of jobs, and how to make one."""
    return InboxUnusable(f"there is no table {table}_job", remedy="run outboxctl inbox init --durable")


def columns(consumer: str, events: Sequence[Event], jobs: Sequence[Job] | None = None) -> dict[str, object]:
    """Give the columns of the rows that events become, one list for each."""
    rows = [row(consumer, event, _NO_FAILURES, "") for event in events]
    return {
        "consumer": consumer,
        "queues": [queue_of(event) for event in events],
        "priorities": [job.priority for job in jobs] if jobs else [0] * len(events),
        "due": [job.run_at for job in jobs] if jobs else [None] * len(events),
        "ids": PackedIds.of([event.packed_id for event in events]),
        "types": [r["event_type"] for r in rows],
        "topics": [r["topic"] for r in rows],
        "partitions": [r["partition"] for r in rows],
        "offsets": [r["offset"] for r in rows],
        "keys": [r["key"] for r in rows],
        "payloads": [r["payload"] for r in rows],
        "headers": [json.dumps(getattr(r["headers"], "obj", [])) for r in rows],
    }
