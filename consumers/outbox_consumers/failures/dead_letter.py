"""Dead letters: events that are not tried any more, kept in the consumer's database with every byte.

A dead letter is written in the transaction that claims the event, so neither can exist without the
other. Redriving one moves it to the queue of its aggregate (see `parked`).
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
    """The failures of an event so far.

    `attempts` that failed, `setbacks` by temporary errors of the database, and the time of the first failure.
    """

    attempts: int = 0
    setbacks: int = 0
    since: datetime | None = None


NO_FAILURES: Final = FailureHistory()


@dataclass(frozen=True, slots=True)
class DeadLetterLimit:
    """When the consumer stops instead of making more dead letters: so many are not the events' fault.

    `in_a_row` is the number of dead letters with no event handled in between, `ratio` their share of about
    the last thousand events.
    """

    in_a_row: int = 100
    ratio: float = 0.5


class DeadLetterLimiter:
    """Counts handled events and dead letters and checks the limit."""

    WINDOW: Final = 1000
    MIN_DEAD_LETTERS: Final = 50  # below that the ratio is not checked

    def __init__(self, limit: DeadLetterLimit) -> None:
        self._limit = limit
        self._row = 0
        self._good = self._bad = 0.0

    def note_handled(self, events: int) -> None:
        """Count handled events."""
        if events:
            self._row = 0
            self._note(events, 0)

    def check(self) -> None:
        """Raise TooManyDeadLetters if the limit does not allow another dead letter."""
        if self._row >= self._limit.in_a_row:
            raise TooManyDeadLetters(
                f"{self._row} events in a row became dead letters",
                remedy="repair the handler or what it depends on, then start again: no event is lost",
            )
        if self._bad >= self.MIN_DEAD_LETTERS and self._bad / (self._good + self._bad) > self._limit.ratio:
            raise TooManyDeadLetters(
                f"more than {self._limit.ratio:.0%} of the last events became dead letters",
                remedy="repair the handler or what it depends on, then start again: no event is lost",
            )

    def note_dead_letter(self) -> None:
        """Count a dead letter."""
        self._row += 1
        self._note(0, 1)

    def _note(self, good: int, bad: int) -> None:
        self._good += good
        self._bad += bad
        while self._good + self._bad > 2 * self.WINDOW:
            self._good /= 2
            self._bad /= 2


class DeadLetterCopy(Protocol):
    """Receives a copy of each dead letter."""

    def send(self, event: Event, history: FailureHistory, error: BaseException) -> None:
        """Return when the copy is stored, raise otherwise."""
        ...


class DeadLetters:
    """Writes the dead letters of one consumer."""

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
    """Return the column values that store an event, with key and payload unchanged."""
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
    """Shorten and escape an error text so that PostgreSQL accepts it: no NUL, no lone surrogate."""
    text = error[:MAX_ERROR_CHARACTERS].replace("\0", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode()


def event_of(found: dict[str, Any]) -> Event:
    """Restore the event that is stored in a row, with the id and the type of the row."""
    identifier = found["event_id"]
    packed = identifier.bytes if isinstance(identifier, UUID) else bytes(identifier)
    return Event.kept(message_of(found), packed, found["event_type"])


def message_of(found: dict[str, Any]) -> Message:
    """Restore the Kafka record that is stored in a row."""
    headers: Headers = [(name, _bytes(value)) for name, value in found["headers"]]
    return Message(
        found["topic"], found["partition"], found["offset"], found["key"], found["payload"], headers
    )


def describe(error: BaseException) -> str:
    """Describe an exception in one line: its class and its text."""
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


# -- Administration: list, redrive, discard ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters. None does not filter; `error` is a part of the error text."""

    consumer: str | None = None
    event_type: str | None = None
    key: str | None = None
    event_id: str | None = None
    since: datetime | None = None
    error: str | None = None
    limit: int | None = None


def find(conn: psycopg.Connection[Any], wanted: DeadLetterFilter, table: str) -> list[dict[str, Any]]:
    """Read the selected dead letters, oldest first."""
    cursor = psycopg.Cursor(conn, row_factory=dict_row)
    statement = sql.compose("list_dead_letters", dead_letter=sql.dead_letter(table))
    return cursor.execute(statement, values_of(wanted)).fetchall()


def values_of(wanted: DeadLetterFilter) -> dict[str, object]:
    """Return a filter as statement parameters."""
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
    """Return dead letters to their consumer, which handles them in order per aggregate.

    `rate` is how many become due per second; 0 means all at once. Does not commit. Their ids stay claimed:
    if Kafka delivers such an event again, it is still a duplicate. Returns how many there were.
    """
    statement = sql.compose(
        "redrive_dead_letters", dead_letter=sql.dead_letter(table), parked=sql.parked(table)
    )
    interval = 1 / rate if rate else 0
    return conn.execute(statement, {"positions": list(positions), "interval": interval}).rowcount


def discard(conn: psycopg.Connection[Any], positions: Sequence[int], table: str) -> int:
    """Delete dead letters permanently; their events count as handled. Does not commit."""
    statement = sql.compose("discard_dead_letters", dead_letter=sql.dead_letter(table))
    return conn.execute(statement, {"positions": list(positions)}).rowcount
