"""Claims and effects of events in one transaction: of a whole batch, or of one event alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum, auto
from typing import Any

import psycopg
from confluent_kafka import Message

from outbox_consumers.counters import Counters
from outbox_consumers.errors import Reject, Skip, TransactionEndedByHandler
from outbox_consumers.event import ID_HEADER, TYPE_HEADER, Event, header, headers_of, pack
from outbox_consumers.inbox import Claims
from outbox_consumers.routes import Route, Routes
from outbox_consumers.session import Session, Status

log = logging.getLogger("outbox_consumers")


class Outcome(Enum):
    """What became of one event."""

    PROCESSED = auto()
    DUPLICATE = auto()
    REJECTED = auto()


class Effects:
    """Applies events through their handlers. Every method ends its transaction before it returns.

    `clock` is monotonic. Neither a claim nor an effect stands unless the commit was proven.
    """

    def __init__(
        self,
        session: Session,
        claims: Claims,
        routes: Routes,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._claims = claims
        self._routes = routes
        self._counters = counters
        self._clock = clock
        self.pipelines = True  # off: handlers of a batch wait for each statement's answer

    def expect_duplicates(self) -> None:
        """Claim carefully from here on: after a rebalance or a failure Kafka delivers again."""
        self._claims.careful = True

    def read(self, messages: Sequence[Message]) -> list[Event]:
        """Make events of the records that have a handler, in order."""
        handlers, new = self._routes.by_type, Event.__new__
        events = []
        for message in messages:
            headers = message.headers()
            # Our own records, spelled out: this runs for every event of a bulk consumer.
            if headers.__class__ is list and len(headers) > 1 and headers[1][0] == TYPE_HEADER:
                route = handlers.get(headers[1][1])
                first, text = headers[0]
                if route is not None and first == ID_HEADER and text.__class__ is bytes and len(text) == 36:
                    event = new(Event)
                    event.message = message
                    event.packed_id = pack(text)
                    event._route = route
                    events.append(event)
                    continue
            self._read_foreign(message, events)
        return events

    def _read_foreign(self, message: Message, events: list[Event]) -> None:
        """Make the event of a record that is not laid out as the outbox does it, or has no handler."""
        route = self._routes.by_type.get(header(headers_of(message), TYPE_HEADER, 1))
        if route is not None:
            event = Event.of(message)
            event._route = route
            if not event.has_own_id:
                self._note_missing_id(event)
            events.append(event)

    def together(self, events: Sequence[Event], deadline: float) -> int:
        """Apply a batch in one transaction and say how many of its events, from the front, are done.

        Fewer than all only when the deadline passed between two handlers: what was done is committed,
        the rest is unclaimed again. Raises whatever a handler or PostgreSQL raised; then nothing is done.
        """
        counters = self._counters
        fresh, done = self._in_transaction(events, deadline)
        counters.batches += 1
        counters.processed += done
        if done == len(fresh):
            counters.duplicates += len(events) - len(fresh)
            return len(events)
        ahead = next(i for i, event in enumerate(events) if event is fresh[done])
        counters.duplicates += ahead - done
        return ahead

    def alone(self, event: Event) -> Outcome:
        """Apply one event in its own transaction, without pipeline mode, so that an error is its own.

        Raises whatever the handler or PostgreSQL raised; then nothing is done.
        """
        self._counters.singles += 1
        try:
            fresh = self._one(event)
        except Reject as reason:
            self.mark(event)
            self._counters.rejected += 1
            log.error("rejected %r: %s", event, reason)
            return Outcome.REJECTED
        if not fresh:
            self._counters.duplicates += 1
            return Outcome.DUPLICATE
        self._counters.processed += 1
        return Outcome.PROCESSED

    def mark(self, event: Event) -> bool:
        """Claim an event without any effect: it counts as handled. False when it already did."""
        with _rollback_on_error(self._session):
            fresh = self._claims.claim(self._session.begin(), [event])
            self._session.commit()
        return bool(fresh)

    def _one(self, event: Event) -> bool:
        with _rollback_on_error(self._session):
            fresh = self._claims.claim(self._session.begin(), [event])
            if not fresh:
                self._session.rollback()
                return False
            route: Route = event._route
            try:
                route.function(self._session.connection(), [event] if route.batch_of else event)
            except Skip:
                # A handler may say Skip because of a database error; then nothing it wrote is left.
                if self._session.status() == Status.INERROR:
                    self._session.rollback()
                    return self.mark(event)
            self._session.commit()
        return True

    def _in_transaction(self, events: Sequence[Event], deadline: float) -> tuple[Sequence[Event], int]:
        with _rollback_on_error(self._session):
            cursor = self._session.begin()
            fresh = self._claims.claim(cursor, events)
            progress = _Progress()
            try:
                self._run(self._session.connection(), fresh, deadline, progress)
                left = fresh[progress.done :]
                if left and self._session.status() == Status.INTRANS:
                    self._claims.give_back(cursor, left)
                self._check_open()
            except BaseException:
                self._unclaim_after_foreign_commit(cursor, fresh[progress.done :])
                raise
            self._session.commit()
        return fresh, progress.done

    def _run(
        self, conn: psycopg.Connection[Any], events: Sequence[Event], deadline: float, progress: _Progress
    ) -> None:
        """Call the handlers in order, neighbours with the same batch handler in one call."""
        while progress.done < len(events):
            if progress.done and self._clock() > deadline:
                return
            start = progress.done
            route: Route = events[start]._route
            if route.batch_of:
                end = _neighbours(events, start, start + route.batch_of)
                self._call(route, conn, events[start:end])
                progress.done = end
                self._check_open()
            else:
                piped = self.pipelines and route.pipeline
                end = _neighbours(events, start, len(events))
                with conn.pipeline() if piped else nullcontext():
                    self._run_each(conn, events[start:end], deadline, progress, piped)

    def _run_each(
        self,
        conn: psycopg.Connection[Any],
        events: Sequence[Event],
        deadline: float,
        progress: _Progress,
        piped: bool,
    ) -> None:
        clock = self._clock
        for event in events:
            self._call(event._route, conn, event)
            progress.done += 1
            if not piped:
                self._check_open()
            if clock() > deadline:
                return

    def _call(self, route: Route, conn: psycopg.Connection[Any], argument: object) -> None:
        with suppress(Skip):
            route.function(conn, argument)

    def _check_open(self) -> None:
        if self._session.status() == Status.IDLE:
            raise TransactionEndedByHandler(
                "a handler ended the transaction, which holds the claims of other events too",
                remedy="return to commit, raise to roll back",
            )

    def _unclaim_after_foreign_commit(self, cursor: psycopg.Cursor[Any], left: Sequence[Event]) -> None:
        # Only a handler can have ended the transaction here. If it committed, it committed the claims of
        # events that nobody has handled yet; they must not look handled.
        if left and self._session.status() == Status.IDLE:
            self._claims.give_back(cursor, left)

    def _note_missing_id(self, event: Event) -> None:
        if not self._counters.without_id:
            log.warning(
                "%r has no id header: it is recognised when Kafka delivers it again, "
                "but not when its producer sends it twice",
                event,
            )
        self._counters.without_id += 1


class _Progress:
    """How many events of a batch have been handed to their handlers and came back."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = 0


@contextmanager
def _rollback_on_error(session: Session) -> Iterator[None]:
    """Roll back on the way out of an exception; the session decides whether its connection survives."""
    try:
        yield
    except BaseException:
        session.rollback()
        raise


def _neighbours(events: Sequence[Event], start: int, limit: int) -> int:
    """Find the end of the run of events from `start` that are called in the same way."""
    first: Route = events[start]._route
    end, limit = start + 1, min(limit, len(events))
    while end < limit and (events[end]._route is first or _alike(first, events[end]._route)):
        end += 1
    return end


def _alike(one: Route, other: Route) -> bool:
    return not one.batch_of and not other.batch_of and one.pipeline == other.pipeline
