"""Handle parked events: the first of each queue that is due, in order per aggregate, until it is empty."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import psycopg

from outbox_consumers.errors import Reject, Skip, SwallowedDatabaseError
from outbox_consumers.event import about
from outbox_consumers.failures.classification import Failure, FailureKind, classify
from outbox_consumers.failures.dead_letter import FailureHistory, describe
from outbox_consumers.failures.destination import Destination, destination
from outbox_consumers.failures.parked import ParkedEvent
from outbox_consumers.handlers.retry import TRANSIENT, RetryStrategy
from outbox_consumers.handlers.routes import Route, Routes
from outbox_consumers.handlers.session import ConsumerSession, Status
from outbox_consumers.loop.transaction import Stores
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")


class Unparker:
    """Handles parked events. Every process of the consumer does; the event is locked while it is handled."""

    def __init__(
        self,
        session: ConsumerSession,
        stores: Stores,
        routes: Routes,
        counters: ConsumerCounters,
        retry: RetryStrategy,
        random: Callable[[], float],
    ) -> None:
        self._session = session
        self._dead_letters = stores.dead_letters
        self._parked = stores.parked
        self._routes = routes
        self._counters = counters
        self._retry = retry
        self._random = random

    def handle_next(self) -> bool:
        """Handle the first event of a queue that is due, in a transaction. False: there is none.

        An event that fails is postponed or becomes a dead letter. Raises errors that are not an event's
        fault: of the database before an event is taken, and when its connection is lost; then nothing has
        changed.
        """
        parked: ParkedEvent | None = None
        try:
            cursor = self._session.begin()
            conn = self._session.connection()
            parked = self._parked.take(conn)
            if parked is None:
                self._session.rollback()
                return False
            route = self._route(parked)
            try:
                route.call(conn, parked.event)
            except Skip as skip:
                if self._session.status() == Status.INERROR:
                    raise SwallowedDatabaseError("a database error was answered with Skip") from skip
            if self._session.status() == Status.INTRANS:
                self._parked.remove(cursor, parked)
                self._parked.read_queues(cursor)
            self._session.commit()
        except Exception as error:
            self._session.rollback()
            if parked is None:
                raise
            failure = classify(error, connected=self._session.usable())
            if failure.kind is FailureKind.OUTAGE:
                raise
            self._resolve(parked, failure)
            return True
        self._counters.unparked += 1
        self._counters.processed += 1
        self._dead_letters.note_handled(1)
        return True

    def _route(self, parked: ParkedEvent) -> Route:
        kind = parked.event.raw_type
        if kind is None:
            raise Reject("the record names no event type that can be read")
        route = self._routes.find(kind)
        if route is None:
            raise Reject("no handler for this event type any more")
        parked.event._route = route
        return route

    def _resolve(self, parked: ParkedEvent, failure: Failure) -> None:
        """Postpone an event that failed, or make it a dead letter. Commits."""
        attempts = parked.history.attempts + (failure.kind is not FailureKind.TRANSIENT)
        history = FailureHistory(attempts, 0, parked.history.since)
        # Whatever its handler's on_failure, an event in this table waits in its queue or is a dead letter.
        target = destination(failure.kind, "dead_letter", exhausted=self._retry.exhausted(attempts))
        added = False
        try:
            cursor = self._session.begin()
            if target is Destination.DEAD_LETTER:
                added = self._parked.remove(cursor, parked)
                if added:
                    self._dead_letters.add(cursor, parked.event, history, failure.error)
                    self._parked.read_queues(cursor)
            else:
                self._postpone(cursor, parked, failure, attempts)
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise
        if added:
            self._dead_letters.note_added(parked.event, history, failure.error)

    def _postpone(
        self, cursor: psycopg.Cursor[Any], parked: ParkedEvent, failure: Failure, attempts: int
    ) -> None:
        transient = failure.kind is FailureKind.TRANSIENT
        strategy = TRANSIENT if transient else self._retry
        delay = strategy.delay(max(attempts, 1), self._random())
        self._parked.postpone(cursor, parked, attempts, describe(failure.error), delay)
        self._counters.failures += not transient
        self._counters.transient += transient
        log.error(
            "parked %r failed, attempt %d, again in %.1f s: %s",
            parked.event, attempts, delay, failure.error, extra=about(parked.event, attempts),
        )  # fmt: skip
