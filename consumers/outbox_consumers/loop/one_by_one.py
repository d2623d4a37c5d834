"""Apply single events, and hold, park, dead-letter or stop at those that fail (see `failures`)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from confluent_kafka import Message

from outbox_consumers.errors import Stopped
from outbox_consumers.event import Event, about
from outbox_consumers.failures.classification import Failure, FailureKind, classify, unless_fatal
from outbox_consumers.failures.dead_letter import FailureHistory
from outbox_consumers.failures.destination import Destination, destination
from outbox_consumers.failures.process_crashes import MAX_CRASHES, CrashedTooOften, ProcessCrashes
from outbox_consumers.handlers.retry import TRANSIENT, RetryStrategy
from outbox_consumers.handlers.routes import Route
from outbox_consumers.handlers.session import ConsumerSession
from outbox_consumers.loop.backlog import Backlog
from outbox_consumers.loop.event_reader import EventReader
from outbox_consumers.loop.outage import Clock, Outage
from outbox_consumers.loop.transaction import EventTransaction
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")


class OneByOne:
    """Applies single records. Used for retries and to find the failing event of a batch."""

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
        """Apply one record. True: its offset may be stored. False: it failed and is held in the backlog.

        Raises InboxUnusable, and Stopped when the handler or a limit asks to stop.
        """
        batch = self._reader.read([message])
        for event in batch.events:
            event._attempt = history.attempts + 1
            failure = self._try(event, history)
            if failure is not None and not self._resolve(event, failure, history):
                return False
        self._reader.count_skipped(batch)
        self._outage.end()
        return True

    def _try(self, event: Event, history: FailureHistory) -> Failure | None:
        try:
            if self._crashes.suspects:
                self._try_counted(event, history)
            else:
                self._transaction.apply_one(event, history)
        except Exception as error:
            return self._classified(error)
        return None

    def _try_counted(self, event: Event, history: FailureHistory) -> None:
        """Apply an event that may crash the process; the attempt is committed before it is made."""
        crashes = self._crashes.count_attempt(self._session.connection(), event) - 1
        try:
            if crashes >= MAX_CRASHES:
                problem = CrashedTooOften(f"the process crashed {crashes} times while it handled this event")
                self._transaction.add_dead_letter(event, FailureHistory(crashes, 0, history.since), problem)
            else:
                self._transaction.apply_one(event, history)
        finally:
            # Whatever was raised, the process has not crashed.
            if self._session.usable():
                self._crashes.clear_attempts(self._session.connection(), [event])

    def _classified(self, error: Exception) -> Failure:
        return unless_fatal(classify(error, connected=self._session.usable()))

    def _resolve(self, event: Event, failure: Failure, history: FailureHistory) -> bool:
        """Do what follows from a failure. True: the event is parked or a dead letter. False: it is held."""
        since = history.since or datetime.now(UTC)
        if failure.kind is FailureKind.OUTAGE:
            self._transaction.expect_duplicates()
            self._backlog.hold([event.message], self._outage.note_failure(failure.error), history)
            return False
        if failure.kind is FailureKind.TRANSIENT:
            self._counters.transient += 1
            history = FailureHistory(history.attempts, history.setbacks + 1, since)
            delay = TRANSIENT.delay(history.setbacks, self._clock.random())
            self._hold(event, failure.error, history, delay)
            return False
        self._counters.failures += 1
        history = FailureHistory(history.attempts + 1, history.setbacks, since)
        delay = self._strategy.delay(history.attempts, self._clock.random())
        error = failure.error
        try:
            if self._move(event, failure, history, delay):
                return True
        except Exception as problem:
            error = self._classified(problem).error
        self._hold(event, error, history, delay)
        return False

    def _move(self, event: Event, failure: Failure, history: FailureHistory, delay: float) -> bool:
        """Park the event, make it a dead letter or stop, as `destination` decides. False: hold it."""
        route: Route = event._route
        exhausted = route.gives_up(history.attempts, self._strategy)
        match destination(failure.kind, route.on_failure, exhausted=exhausted):
            case Destination.RETRY:
                return False
            case Destination.PARKED:
                self._transaction.park(event, history, failure.error, delay)
            case Destination.DEAD_LETTER:
                self._transaction.add_dead_letter(event, history, failure.error)
            case Destination.STOP:
                raise Stopped(
                    f"{event!r} failed {history.attempts} times: {_describe(failure.error, event)}",
                    remedy="repair the cause and start again: the consumer continues with this event",
                ) from failure.error
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
    """Remove this package's frames from the traceback, so that it begins in the handler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return error.with_traceback(trace) if trace is not None else error


def _describe(error: Exception, event: Event) -> str:
    hint = " (the event is a tombstone: its payload is NULL)" if event.payload is None else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{hint}"
