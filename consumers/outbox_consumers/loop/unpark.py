"""Handle parked events: head by head, in order per aggregate, until each queue is empty."""

from __future__ import annotations

import logging
from collections.abc import Callable

from outbox_consumers.errors import Reject, Skip, SwallowedDatabaseError
from outbox_consumers.event import about
from outbox_consumers.failures.dead_letter import FailureHistory, describe
from outbox_consumers.failures.parked import ParkedEvent
from outbox_consumers.handlers.retry import TRANSIENT, RetryStrategy, is_transient
from outbox_consumers.handlers.routes import Route, Routes
from outbox_consumers.handlers.session import ConsumerSession, Status
from outbox_consumers.loop.transaction import Stores
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")


class Unparker:
    """Handles what is parked. Any process of the consumer may; a head is locked while it is worked on."""

    def __init__(
        self,
        session: ConsumerSession,
        stores: Stores,
        routes: Routes,
        counters: ConsumerCounters,
        retry: RetryStrategy,
        chance: Callable[[], float],
    ) -> None:
        self._session = session
        self._stores = stores
        self._routes = routes
        self._counters = counters
        self._retry = retry
        self._chance = chance

    def handle_next(self) -> bool:
        """Take one head that is due and handle it. False when there is none.

        Raises transient errors of the database; then nothing is changed.
        """
        parked: ParkedEvent | None = None
        try:
            cursor = self._session.begin()
            conn = self._session.connection()
            parked = self._stores.parked.take(conn)
            if parked is None:
                self._session.rollback()
                return False
            route = self._route(parked)
            try:
                route.call(conn, parked.event)
            except Skip as word:
                if self._session.status() == Status.INERROR:
                    raise SwallowedDatabaseError("a database error was answered with Skip") from word
            if self._session.status() == Status.INTRANS:
                self._stores.parked.remove(cursor, parked)
                self._stores.parked.read_queues(cursor)
            self._session.commit()
        except Exception as error:
            self._session.rollback()
            if parked is None or (is_transient(error) and not self._session.usable()):
                raise
            self._failed(parked, error)
            return True
        self._counters.unparked += 1
        self._counters.processed += 1
        self._stores.dead_letters.note_handled(1)
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

    def _failed(self, parked: ParkedEvent, error: Exception) -> None:
        transient = is_transient(error)
        attempts = parked.history.attempts + (not transient)
        history, extra = FailureHistory(attempts, 0, parked.history.since), about(parked.event, attempts)
        buried = False
        try:
            cursor = self._session.begin()
            if isinstance(error, Reject) or (not transient and self._retry.exhausted(attempts)):
                buried = self._stores.parked.remove(cursor, parked)
                if buried:
                    self._stores.dead_letters.add(cursor, parked.event, history, error)
                    self._stores.parked.read_queues(cursor)
            else:
                strategy = TRANSIENT if transient else self._retry
                delay = strategy.delay(max(attempts, 1), self._chance())
                self._stores.parked.postpone(cursor, parked, attempts, describe(error), delay)
                self._counters.failures += not transient
                self._counters.transient += transient
                log.error(
                    "parked %r failed, attempt %d, again in %.1f s: %s",
                    parked.event, attempts, delay, error, extra=extra,
                )  # fmt: skip
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise
        if buried:
            self._stores.dead_letters.note_added(parked.event, history, error)
