"""Events one at a time: tried, and when they fail held, parked, given up, or a reason to stop."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from confluent_kafka import Message

from outbox_consumers.errors import InboxUnusable, Stopped
from outbox_consumers.event import Event, about
from outbox_consumers.failures.dead_letter import FailureHistory
from outbox_consumers.failures.process_crashes import MAX_CRASHES, CrashedTooOften, ProcessCrashes
from outbox_consumers.handlers.retry import TRANSIENT, RetryStrategy, is_transient
from outbox_consumers.handlers.routes import Route
from outbox_consumers.handlers.session import ConsumerSession
from outbox_consumers.loop.backlog import Backlog
from outbox_consumers.loop.event_reader import EventReader
from outbox_consumers.loop.outage import Clock, Outage
from outbox_consumers.loop.transaction import EventTransaction
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")


class OneByOne:
    """Applies single records and decides about those that fail."""

    def __init__(
        self,
        session: ConsumerSession,
        reader: EventReader,
        transaction: EventTransaction,
        crashes: ProcessCrashes,
        backlog: Backlog,
        outage: Outage,
        strategy: RetryStrategy,
        counters: ConsumerCounters,
        clock: Clock,
    ) -> None:
        self._session = session
        self._reader = reader
        self._transaction = transaction
        self._crashes = crashes
        self._backlog = backlog
        self._outage = outage
        self._strategy = strategy
        self._counters = counters
        self._clock = clock

    def apply(self, message: Message, history: FailureHistory) -> bool:
        """Apply one record and say True when its offset may be stored; when it fails, hold it."""
        batch = self._reader.read([message])
        for event in batch.events:
            event._attempt = history.attempts + 1
            failure = self._try(event, history)
            if failure is not None and not self._given_up(event, failure, history):
                return False
        self._reader.count_skipped(batch)
        self._outage.end()
        return True

    def _try(self, event: Event, history: FailureHistory) -> Exception | None:
        try:
            if self._crashes.suspects:
                self._try_counted(event, history)
            else:
                self._transaction.apply_one(event, history)
        except (InboxUnusable, Stopped):
            raise
        except Exception as error:
            return error
        return None

    def _try_counted(self, event: Event, history: FailureHistory) -> None:
        """Apply an event that may kill the process; the attempt is on disk before it is made."""
        crashes = self._crashes.count_attempt(self._session.connection(), event) - 1
        try:
            if crashes >= MAX_CRASHES:
                problem = CrashedTooOften(f"the process died {crashes} times while it handled this event")
                self._transaction.add_dead_letter(event, FailureHistory(crashes, 0, history.since), problem)
            else:
                self._transaction.apply_one(event, history)
        finally:
            # Whatever was raised, the process lives.
            if self._session.usable():
                self._crashes.clear_attempts(self._session.connection(), [event])

    def _given_up(self, event: Event, error: Exception, history: FailureHistory) -> bool:
        """Park, bury or hold an event that failed; False when it is held."""
        since = history.since or datetime.now(UTC)
        if self._outage.explains(error):
            self._transaction.expect_duplicates()
            self._backlog.hold([event.message], self._outage.note_failure(error), history)
            return False
        if is_transient(error):
            self._counters.transient += 1
            history = FailureHistory(history.attempts, history.setbacks + 1, since)
            self._hold(event, error, history, TRANSIENT.delay(history.setbacks, self._clock.random()))
            return False
        self._counters.failures += 1
        history = FailureHistory(history.attempts + 1, history.setbacks, since)
        delay = self._strategy.delay(history.attempts, self._clock.random())
        try:
            if self._put_aside(event, error, history, delay):
                return True
        except (InboxUnusable, Stopped):
            raise
        except Exception as problem:
            error = problem
        self._hold(event, error, history, delay)
        return False

    def _put_aside(self, event: Event, error: Exception, history: FailureHistory, delay: float) -> bool:
        """Do what the handler's on_failure says, if its time has come."""
        route: Route = event._route
        if route.on_failure == "park":
            self._transaction.park(event, history, error, delay)
            return True
        if not route.gives_up(history.attempts, self._strategy):
            return False
        if route.on_failure == "stop":
            raise Stopped(
                f"{event!r} failed {history.attempts} times: {_describe(error, event)}",
                remedy="mend it and start again: the consumer goes on with this event",
            ) from error
        self._transaction.add_dead_letter(event, history, error)
        return True

    def _hold(self, event: Event, error: Exception, history: FailureHistory, delay: float) -> None:
        first = history.attempts == 1 and not history.setbacks
        attempt = history.attempts + history.setbacks
        log.error(
            "%r failed, attempt %d, again in %.1f s; its partition waits: %s",
            event, attempt, delay, _describe(error, event), extra=about(event, attempt),
            exc_info=_without_own_frames(error) if first else None,
        )  # fmt: skip
        self._backlog.hold([event.message], self._clock.now() + delay, history)


def _without_own_frames(error: Exception) -> Exception:
    """Cut our own frames off the traceback, so that it begins in the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return error.with_traceback(trace) if trace is not None else error


def _describe(error: Exception, event: Event) -> str:
    hint = " (the event is a tombstone: its payload is NULL)" if event.payload is None else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{hint}"
