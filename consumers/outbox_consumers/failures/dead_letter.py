"""Events that a consumer has given up, kept whole in its own database until somebody decides.

A dead letter is written in the transaction that claims the event, so neither can exist without the
other. A redriven one goes back into the queue of its aggregate (see `parked`).
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

import psycopg
from confluent_kafka import Message
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from outbox_connectors.record_headers import Headers
from outbox_consumers import sql
from outbox_consumers.errors import TooManyDeadLetters
from outbox_consumers.event import Event, about
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")

MAX_ERROR_CHARACTERS: Final = 8192


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """What an event has been through: failed attempts, database setbacks, and since when."""

    attempts: int = 0
    setbacks: int = 0
    since: datetime | None = None


NO_FAILURES: Final = FailureHistory()


@dataclass(frozen=True, slots=True)
class DeadLetterLimit:
    """When to stop instead of giving up one event after the other: then it is not the events' fault.

    `in_a_row` counts dead letters with no event handled in between, `ratio` looks at about the last
    thousand outcomes.
    """

    in_a_row: int = 100
    ratio: float = 0.5


class DeadLetterLimiter:
    """Counts outcomes and says when the limit is passed."""

    WINDOW: Final = 1000
    ENOUGH: Final = 50  # dead letters before the ratio means anything

    def __init__(self, limit: DeadLetterLimit) -> None:
        self._limit = limit
        self._row = 0
        self._good = self._bad = 0.0

    def note_handled(self, events: int) -> None:
        """Note events that were handled."""
        if events:
            self._row = 0
            self._note(events, 0)

    def check(self) -> None:
        """Say whether one more event may be given up. Raises TooManyDeadLetters past the limit."""
        if self._row >= self._limit.in_a_row:
            raise TooManyDeadLetters(
                f"{self._row} events in a row became dead letters",
                remedy="mend the handler or what it depends on; the consumer goes on where it stopped",
            )
        if self._bad >= self.ENOUGH and self._bad / (self._good + self._bad) > self._limit.ratio:
            raise TooManyDeadLetters(
                f"more than {self._limit.ratio:.0%} of the last events became dead letters",
                remedy="mend the handler or what it depends on; the consumer goes on where it stopped",
            )

    def note_dead_letter(self) -> None:
        """Note an event that was given up."""
        self._row += 1
        self._note(0, 1)

    def _note(self, good: int, bad: int) -> None:
        self._good += good
        self._bad += bad
        while self._good + self._bad > 2 * self.WINDOW:
            self._good /= 2
            self._bad /= 2


class DeadLetterCopy(Protocol):
    """Where a copy of each dead letter goes."""

    def send(self, event: Event, history: FailureHistory, error: BaseException) -> None:
        """Return when the copy is safe, raise otherwise."""
        ...


class DeadLetters:
    """The dead letters of one consumer, as its own loop writes them."""

    def __init__(
        self,
        consumer: str,
        table: str,
        limiter: DeadLetterLimiter,
        copies: DeadLetterCopy | None,
        counters: ConsumerCounters,
    ) -> None:
        self._limiter = limiter
        self._counters = counters
        self._consumer = consumer
        self._copies = copies
        self._add = sql.compose("add_dead_letter", dead_letter=sql.dead_letter(table))

    def add(
        self, cursor: psycopg.Cursor[Any], event: Event, history: FailureHistory, error: BaseException
    ) -> None:
        """Write an event to the table, in the caller's transaction, and its copy to the topic if one is set.

        The brokers have acknowledged the copy when this returns. The caller calls `note_added` after its
        commit. Raises TooManyDeadLetters when the limit is exceeded, NotDelivered when the brokers do not
        take the copy.
        """
        self._limiter.check()
        cursor.execute(self._add, row(self._consumer, event, history, describe(error)))
        if self._copies is not None:
            self._copies.send(event, history, error)

    def note_added(self, event: Event, history: FailureHistory, error: BaseException) -> None:
        """Count and log a dead letter. To be called once its transaction is committed."""
        self._counters.dead_letters += 1
        self._limiter.note_dead_letter()
        extra = about(event, history.attempts)
        log.error("dead letter %r after %d attempts: %s", event, history.attempts, error, extra=extra)

    def note_handled(self, events: int) -> None:
        """Count events that were handled, which the limit compares with the dead letters."""
        self._limiter.note_handled(events)


def row(consumer: str, event: Event, history: FailureHistory, error: str) -> dict[str, object]:
    """Give the columns that an event is kept in, its bytes untouched."""
    topic, partition, offset = event.position
    return {
        "consumer": consumer,
        "event_id": event.id,
        "event_type": (event.raw_type or b"").decode("utf-8", "backslashreplace").replace("\0", "\\x00"),
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "key": event.message.key(),
        "payload": event.message.value(),
        "headers": Jsonb([[name, _json(value)] for name, value in event.record_headers]),
        "attempts": history.attempts,
        "first_failed_at": history.since or datetime.now(UTC),
        "error": storable(error),
    }


def storable(error: str) -> str:
    """Cut and escape the text of an error so that PostgreSQL takes it: no NUL, no lone surrogate."""
    text = error[:MAX_ERROR_CHARACTERS].replace("\0", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode()


def event_of(found: dict[str, Any]) -> Event:
    """Make the event again that a row was made of, under the id and the type that it has there."""
    identifier = found["event_id"]
    packed = identifier.bytes if isinstance(identifier, UUID) else bytes(identifier)
    return Event.kept(message_of(found), packed, found["event_type"])


def message_of(found: dict[str, Any]) -> Message:
    """Make the Kafka record again that a row was made of."""
    headers: Headers = [(name, _bytes(value)) for name, value in found["headers"]]
    return Message(
        found["topic"], found["partition"], found["offset"], found["key"], found["payload"], headers
    )


def describe(error: BaseException) -> str:
    """Say in one line what an exception says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _json(value: str | bytes | None) -> object:
    if value is None or isinstance(value, str):
        return value
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"base64": b64encode(value).decode()} if "\0" in text else text


def _bytes(value: object) -> bytes | None:
    if isinstance(value, dict):
        return b64decode(value["base64"])
    return None if value is None else str(value).encode()


# -- For people: list, redrive, discard ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant. None does not filter; `error` is a part of the text."""

    consumer: str | None = None
    event_type: str | None = None
    key: str | None = None
    event_id: str | None = None
    since: datetime | None = None
    error: str | None = None
    limit: int | None = None


def find(conn: psycopg.Connection[Any], wanted: DeadLetterFilter, table: str) -> list[dict[str, Any]]:
    """Read dead letters, oldest first."""
    cursor = psycopg.Cursor(conn, row_factory=dict_row)
    statement = sql.compose("list_dead_letters", dead_letter=sql.dead_letter(table))
    return cursor.execute(statement, values_of(wanted)).fetchall()


def values_of(wanted: DeadLetterFilter) -> dict[str, object]:
    """Give the values of a statement's filters."""
    return {
        "consumer": wanted.consumer,
        "event_type": wanted.event_type,
        "key": None if wanted.key is None else wanted.key.encode(),
        "event_id": wanted.event_id,
        "since": wanted.since,
        "error": wanted.error,
        "limit": wanted.limit,
    }


def redrive(conn: psycopg.Connection[Any], positions: Sequence[int], table: str, rate: float) -> int:
    """Give dead letters back to their consumer, which handles them in order per aggregate.

    `rate` is how many become due per second, 0 for all at once. Commits when the connection does.
    Their ids stay claimed: the same event arriving from Kafka once more is still a duplicate.
    """
    statement = sql.compose(
        "redrive_dead_letters", dead_letter=sql.dead_letter(table), parked=sql.parked(table)
    )
    interval = 1 / rate if rate else 0
    return conn.execute(statement, {"positions": list(positions), "interval": interval}).rowcount


def discard(conn: psycopg.Connection[Any], positions: Sequence[int], table: str) -> int:
    """Forget dead letters for good; their events count as handled."""
    statement = sql.compose("discard_dead_letters", dead_letter=sql.dead_letter(table))
    return conn.execute(statement, {"positions": list(positions)}).rowcount
