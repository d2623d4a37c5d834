"""Claim events and call their handlers in one transaction: a whole batch, or one event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import psycopg

from outbox_consumers.errors import Reject, Skip, TransactionEndedByHandler
from outbox_consumers.event import Event, about
from outbox_consumers.failures.dead_letter import DeadLetters, FailureHistory
from outbox_consumers.failures.parked import Parked
from outbox_consumers.handlers.routes import Route
from outbox_consumers.handlers.session import ConsumerSession, Status
from outbox_consumers.inbox.claims import Claims
from outbox_consumers.loop.event_reader import EventReader
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")


class Outcome(Enum):
    """What happened to one event."""

    PROCESSED = auto()
    DUPLICATE = auto()
    PARKED = auto()
    DEAD = auto()


@dataclass(frozen=True, slots=True)
class Stores:
    """The consumer's stores in its own database."""

    claims: Claims
    dead_letters: DeadLetters
    parked: Parked
    window: Callable[[psycopg.Connection[Any]], bytes]  # reads the id below which the inbox is empty


class EventTransaction:
    """Applies events through their handlers. Every method ends its transaction before it returns.

    Claims and effects are stored together or not at all, and a commit counts only when it is proven.
    """

    def __init__(
        self, session: ConsumerSession, stores: Stores, reader: EventReader, counters: ConsumerCounters
    ) -> None:
        self._session = session
        self._stores = stores
        self._claims = stores.claims
        self._dead_letters = stores.dead_letters
        self._parked = stores.parked
        self._reader = reader
        self._counters = counters
        self.pipelines = True  # False: handlers of a batch wait for each statement's result

    def expect_duplicates(self) -> None:
        """Make the next claim expect duplicates: after a rebalance or a failure Kafka delivers again."""
        self._claims.careful = True

    def read_window(self) -> None:
        """Read the id below which the inbox remembers nothing."""
        self._reader.forget_below(self._stores.window(self._session.connection()))

    def apply_batch(self, events: Sequence[Event], late: Callable[[], bool]) -> int | None:
        """Apply the events of a RecordBatch in one transaction. Return None when all of them are done.

        When `late` becomes true between two handlers, commit what is done, release the claims of the rest
        and return the place of the first record that is not done. Raises whatever a handler or PostgreSQL
        raised; then nothing is done.
        """
        counters = self._counters
        with _rollback_on_error(self._session):
            cursor = self._session.begin()
            fresh = self._claim(cursor, events)
            free, waiting = self._parked.split(fresh)
            handled = self._handle(cursor, free, late)
            cut = free[handled]._place if handled < len(free) else None
            if waiting:
                waiting = self._park_behind(cursor, waiting, cut)
            self._session.commit()
        done = len(events) if cut is None else sum(event._place < cut for event in events)
        counters.batches += 1
        counters.processed += handled
        counters.parked += len(waiting)
        counters.duplicates += done - handled - len(waiting)
        self._dead_letters.note_handled(handled)
        return cut

    def apply_one(self, event: Event, history: FailureHistory) -> Outcome:
        """Apply one event in its own transaction, without pipeline mode, so that any error is this event's.

        On Reject the event becomes a dead letter. Raises whatever else the handler or PostgreSQL raised; then
        nothing is done.
        """
        self._counters.singles += 1
        try:
            outcome = self._handle_one(event)
        except Reject as reason:
            self._counters.rejected += 1
            return self.add_dead_letter(
                event, FailureHistory(history.attempts + 1, history.setbacks, history.since), reason
            )
        counter = {Outcome.DUPLICATE: "duplicates", Outcome.PARKED: "parked"}.get(outcome, "processed")
        setattr(self._counters, counter, getattr(self._counters, counter) + 1)
        self._dead_letters.note_handled(outcome is Outcome.PROCESSED)
        return outcome

    def add_dead_letter(self, event: Event, history: FailureHistory, error: BaseException) -> Outcome:
        """Claim an event and make it a dead letter instead of handling it.

        Raises TooManyDeadLetters when the limit is exceeded, NotDelivered when the brokers do not take the
        copy for the dead letter topic.
        """
        with self._claiming(event) as cursor:
            if cursor is not None:
                self._dead_letters.add(cursor, event, history, error)
        if cursor is None:
            return Outcome.DUPLICATE
        self._dead_letters.note_added(event, history, error)
        return Outcome.DEAD

    def park(self, event: Event, history: FailureHistory, error: BaseException, delay: float) -> Outcome:
        """Claim an event and make it the first one of its aggregate's queue instead of handling it."""
        with self._claiming(event) as cursor:
            if cursor is not None:
                self._parked.park(cursor, event, history, error, delay)
                self._parked.read_queues(cursor)
        if cursor is None:
            return Outcome.DUPLICATE
        self._counters.parked += 1
        extra = about(event, history.attempts)
        log.error(
            "parked %r, again in %.1f s; later events of its key wait: %s", event, delay, error, extra=extra
        )
        return Outcome.PARKED

    @contextmanager
    def _claiming(self, event: Event) -> Iterator[psycopg.Cursor[Any] | None]:
        """Run a block in a transaction that claims an event. Yields None if the event is claimed already."""
        with _rollback_on_error(self._session):
            cursor = self._session.begin()
            fresh = self._claims.claim(cursor, [event])
            yield cursor if fresh else None
            self._session.commit()

    def _claim(self, cursor: psycopg.Cursor[Any], events: Sequence[Event]) -> Sequence[Event]:
        careful = self._claims.careful
        fresh = self._claims.claim(cursor, events)
        if careful or self._claims.careful:
            self._parked.read_queues(cursor)
        return fresh

    def _handle_one(self, event: Event) -> Outcome:
        with _rollback_on_error(self._session):
            cursor = self._session.begin()
            fresh = self._claim(cursor, [event])
            if not fresh:
                self._session.rollback()
                return Outcome.DUPLICATE
            if self._parked.split(fresh)[1]:
                self._parked.park(cursor, event)
                self._session.commit()
                return Outcome.PARKED
            try:
                event._route.call(self._session.connection(), event)
            except Skip:
                # A handler may raise Skip because of a database error; then nothing that it wrote is left.
                if self._session.status() == Status.INERROR:
                    self._session.rollback()
                    with self._claiming(event):
                        return Outcome.PROCESSED
            self._session.commit()
        return Outcome.PROCESSED

    def _handle(self, cursor: psycopg.Cursor[Any], events: Sequence[Event], late: Callable[[], bool]) -> int:
        """Call the handlers until all are done or `late` is true, and release the claims of the rest."""
        progress = _Progress()
        try:
            self._call_handlers(self._session.connection(), events, late, progress)
            left = events[progress.done :]
            if left and self._session.status() == Status.INTRANS:
                self._claims.give_back(cursor, left)
            self._check_open()
        except BaseException:
            self._unclaim_after_handler_commit(cursor, events[progress.done :])
            raise
        return progress.done

    def _park_behind(
        self, cursor: psycopg.Cursor[Any], waiting: Sequence[Event], cut: int | None
    ) -> Sequence[Event]:
        """Park the events whose aggregate has parked ones; release the claims of those behind the cut."""
        done = [event for event in waiting if cut is None or event._place < cut]
        left = waiting[len(done) :]
        for event in done:
            self._parked.park(cursor, event)
        if left:
            self._claims.give_back(cursor, left)
        return done

    def _call_handlers(
        self,
        conn: psycopg.Connection[Any],
        events: Sequence[Event],
        late: Callable[[], bool],
        progress: _Progress,
    ) -> None:
        """Call the handlers in order; consecutive events of the same batch handler in one call."""
        while progress.done < len(events):
            if progress.done and late():
                return
            start = progress.done
            route: Route = events[start]._route
            if route.batch_of:
                end = _end_of_run(events, start, start + route.batch_of)
                with suppress(Skip):
                    route.function(conn, events[start:end])
                progress.done = end
                self._check_open()
            else:
                piped = self.pipelines and route.pipeline
                end = _end_of_run(events, start, len(events))
                with conn.pipeline() if piped else nullcontext():
                    self._call_each(conn, events[start:end], late, progress, piped)

    def _call_each(
        self,
        conn: psycopg.Connection[Any],
        events: Sequence[Event],
        late: Callable[[], bool],
        progress: _Progress,
        piped: bool,
    ) -> None:
        for event in events:
            try:  # costs nothing, unlike `with suppress(Skip)` for every event
                event._route.function(conn, event)
            except Skip:
                log.debug("%r: skipped by its handler", event, extra=about(event))
            progress.done += 1
            if not piped:
                self._check_open()
            if late():
                return

    def _check_open(self) -> None:
        if self._session.status() == Status.IDLE:
            raise TransactionEndedByHandler(
                "a handler ended the transaction, which holds the claims of other events too",
                remedy="return to commit, raise to roll back",
            )

    def _unclaim_after_handler_commit(self, cursor: psycopg.Cursor[Any], left: Sequence[Event]) -> None:
        # Only a handler can have ended the transaction here. If it committed, it also committed the claims
        # of events that are not handled yet; release them.
        if left and self._session.status() == Status.IDLE:
            self._claims.give_back(cursor, left)


class _Progress:
    """How many events of a batch their handlers have returned from."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = 0


@contextmanager
def _rollback_on_error(session: ConsumerSession) -> Iterator[None]:
    """Roll back when the block raises; the session closes a connection that cannot be rolled back."""
    try:
        yield
    except BaseException:
        session.rollback()
        raise


def _end_of_run(events: Sequence[Event], start: int, limit: int) -> int:
    """Return the end of the run of events from `start` whose handlers are called in the same way."""
    first: Route = events[start]._route
    end, limit = start + 1, min(limit, len(events))
    while end < limit and (events[end]._route is first or _same_call(first, events[end]._route)):
        end += 1
    return end


def _same_call(one: Route, other: Route) -> bool:
    return not one.batch_of and not other.batch_of and one.pipeline == other.pipeline
