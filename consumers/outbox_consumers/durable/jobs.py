"""Jobs: events in a queue, as the caller adds them, as rows, and as a worker leases them."""

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
_LONGEST_QUEUE: Final = 256  # bytes; an index entry may have 2,700, a key may be longer
_NO_FAILURES: Final = FailureHistory()


@dataclass(frozen=True, slots=True)
class Job:
    """A job for a queue: `Job("SendInvoice", {"order": 42}, key="42")`.

    Jobs with the same key are handled in the order in which they were added, one at a time; a job with
    an empty key waits for no other job. Jobs with a higher `priority` go first, then older ones. `run_at`
    is the earliest time to run (aware datetime). A second job with the same `id` is ignored; without an
    `id` every job is new.
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
            raise UsageError(f"key={self.key!r} is not a string", remedy="pass str(...)")
        if self.id is not None and not self.id.int:
            raise UsageError("id is the nil UUID, which identifies nothing", remedy="leave it out")
        if self.priority not in PRIORITIES:
            raise UsageError(f"priority={self.priority} is not between -32768 and 32767")
        if self.run_at is not None and self.run_at.tzinfo is None:
            raise UsageError(
                f"run_at={self.run_at} has no time zone",
                remedy="pass an aware datetime, for example datetime.now(UTC)",
            )

    def event(self) -> Event:
        """Return the event that the handler will get. Raises UsageError for data that is not JSON."""
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
            raise UsageError(f"the data of job {self.type} cannot be written as JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job that a worker has leased. `token` is its fencing token: each lease of a job has another one."""

    position: int
    token: int
    attempts: int
    suspect: bool
    priority: int
    event: Event


def leased_job(found: dict[str, Any]) -> LeasedJob:
    """Return the leased job that a row holds."""
    event = event_of(found)
    event._attempt = found["attempts"] + 1
    return LeasedJob(
        found["position"], found["taken"], found["attempts"], found["suspect"], found["priority"], event
    )


def queue_of(event: Event) -> bytes | None:
    """Return the name of an event's queue, made of its topic and key; None without a key."""
    key = event.message.key()
    if not key:
        return None
    queue = (event.message.topic() or "").encode() + b"\0" + key
    return queue if len(queue) <= _LONGEST_QUEUE else hashlib.sha256(queue).digest()


class JobWriter:
    """Adds jobs to the queue of one consumer, on any connection and in its transaction."""

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
        """Add events in order and notify the workers on commit. Raises InboxUnusable without a table."""
        cursor = cursor_of(conn)
        try:
            cursor.execute(self._enqueue, columns(self._consumer, events, jobs), prepare=False)
        except errors.UndefinedTable:
            raise missing(self._table) from None
        self.notify(conn)

    def notify(self, conn: psycopg.Connection[Any]) -> None:
        """Notify the workers when the transaction commits, unless that is switched off."""
        if self._notifies:
            cursor_of(conn).execute(self._notify, {"channel": self._channel})


def missing(table: str) -> InboxUnusable:
    """Return the error for a missing table of jobs."""
    return InboxUnusable(f"there is no table {table}_job", remedy="run outboxctl inbox init --durable")


def columns(consumer: str, events: Sequence[Event], jobs: Sequence[Job] | None = None) -> dict[str, object]:
    """Return the parameters of `durable_enqueue`: one list for each column."""
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
