"""The loop of a consumer: fetch records, apply them, store their offsets, hold what fails.

    records of a held partition ---------------> its backlog, in order, until the first one is due
    all others: one transaction for the batch --succeeds--> store offsets
                                 |fails
                                 v
    halves of the batch, down to single records --succeeds--> store offsets
                                 |fails
                                 v
    retry later (the partition is held), park, dead letter or stop: see `failures`

The loop never sleeps instead of polling Kafka: records that wait are in the backlog.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import psycopg
from confluent_kafka import Message

from outbox_consumers.errors import NotDelivered
from outbox_consumers.failures.classification import Failure, FailureKind, classify, unless_fatal
from outbox_consumers.failures.dead_letter import NO_FAILURES
from outbox_consumers.failures.process_crashes import CrashedTooOften, ProcessCrashes
from outbox_consumers.handlers.retry import RetryStrategy
from outbox_consumers.handlers.session import ConsumerSession
from outbox_consumers.loop.backlog import Backlog
from outbox_consumers.loop.event_reader import EventReader, RecordBatch
from outbox_consumers.loop.group_member import POLL_SECONDS, GroupMember, Partition
from outbox_consumers.loop.one_by_one import OneByOne
from outbox_consumers.loop.outage import Clock, Outage
from outbox_consumers.loop.transaction import EventTransaction
from outbox_consumers.loop.unpark import Unparker
from outbox_consumers.processes.counters import ConsumerCounters
from outbox_consumers.processes.health import ProcessState

log = logging.getLogger("outbox_consumers")

BATCH_RETRIES: Final = 2  # at once, after a deadlock or another temporary error
ONE_BY_ONE_SIZE: Final = 32  # a failing batch of this size or less is not halved any more
MAX_PIPELINE_FAILURES: Final = 3
UNPARK_SECONDS: Final = 1.0
WINDOW_SECONDS: Final = 60.0
_NO_EVENTS_FAULT: Final = (FailureKind.OUTAGE, FailureKind.TRANSIENT)

Late: TypeAlias = Callable[[], bool]  # whether to begin nothing more in this iteration


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How many records the loop takes at once and how many seconds it may work between two polls."""

    batch_size: int
    budget: float
    retry: RetryStrategy


class Loop:
    """One run of a consumer, from joining the group to leaving it. Used by one thread."""

    def __init__(
        self,
        source: GroupMember,
        session: ConsumerSession,
        reader: EventReader,
        transaction: EventTransaction,
        unparker: Unparker,
        crashes: ProcessCrashes,
        settings: LoopSettings,
        counters: ConsumerCounters,
        state: ProcessState,
        clock: Clock,
    ) -> None:
        self._source = source
        self._session = session
        self._reader = reader
        self._transaction = transaction
        self._unparker = unparker
        self._crashes = crashes
        self._settings = settings
        self._counters = counters
        self._state = state
        self._clock = clock
        self._backlog = Backlog()
        self._outage = Outage(counters, clock)
        self._one_by_one = OneByOne(
            session,
            reader,
            transaction,
            crashes,
            self._backlog,
            self._outage,
            settings.retry,
            counters,
            clock,
        )
        self._size = settings.batch_size  # shrinks while batches exceed the budget
        self._pipeline_failures = 0
        self._unpark_at = 0.0
        self._more_parked = False  # parked events that are due already
        self._window_at = 0.0
        self._stopping: Callable[[], bool] = lambda: False

    def run(self, stopping: Callable[[], bool]) -> None:
        """Handle records until `stopping` returns true.

        The transaction in progress is finished; held records are left to Kafka, which delivers them again.
        """
        self._stopping = stopping
        try:
            self._prepare(stopping)
            while not stopping():
                self.run_once()
        finally:
            self._state.polled_at = 0.0
            self._session.rollback()
            self._leave()
            self._source.close()
            self._session.close()

    def _prepare(self, stopping: Callable[[], bool]) -> None:
        """Read the inbox's window and which processes crashed. Retry while the database is away."""
        while not stopping():
            try:
                self._transaction.read_window()
                self._crashes.find_crashed(self._session.connection())
                return
            except Exception as error:
                if self._classified(error).kind is not FailureKind.OUTAGE:
                    raise
                self._clock.sleep(max(0.0, self._outage.note_failure(error) - self._clock.now()))

    def _leave(self) -> None:
        if self._session.usable():
            with suppress(psycopg.Error):
                self._crashes.leave(self._session.connection())

    def run_once(self, longest_wait: float = POLL_SECONDS) -> None:
        """Fetch once, apply the records, and retry what is due."""
        now = self._clock.now()
        busy = self._more_parked and not self._outage.waiting()
        wait = 0.0 if busy else self._backlog.seconds_until_due(now, longest_wait)
        messages = self._source.fetch(self._size, wait)
        self._state.polled_at = self._clock.now()
        changed = self._source.changed_partitions()
        if changed:
            self._transaction.expect_duplicates()
            self._backlog.drop(changed)
        messages = self._backlog.hold_or_return(messages)
        late = self._late_after(self._settings.budget)
        if messages:
            self._apply(messages, late)
        self._retry(late)
        self._handle_parked()
        self._source.pause(self._backlog.longer_than(self._settings.batch_size))
        self._state.held = len(self._backlog)
        self._state.database = not self._outage

    def _late_after(self, seconds: float) -> Late:
        """Return a function that is true once the time is up or the consumer is to stop."""
        now, end, stopping = self._clock.now, self._clock.now() + seconds, self._stopping
        return lambda: now() > end or stopping()

    def _apply(self, messages: list[Message], late: Late) -> None:
        """Apply records in one transaction; if it fails, find the events that make it fail."""
        if self._outage.waiting():
            self._backlog.hold_each(messages, self._outage.retry_at)
            return
        failure = self._apply_batch(messages, late)
        for retry in range(BATCH_RETRIES):
            if failure is None or failure.kind is not FailureKind.TRANSIENT:
                break
            self._counters.transient += 1
            self._clock.sleep(0.05 * (retry + self._clock.random()))
            failure = self._apply_batch(messages, late)
        if failure is None:
            return
        if failure.kind is FailureKind.OUTAGE:
            self._hold_for_outage(messages, failure.error)
        else:
            self._isolate(messages, late, failure)

    def _apply_batch(self, messages: Sequence[Message], late: Late) -> Failure | None:
        """Apply records in one transaction and store their offsets, or return why that failed.

        While a crashed process is being investigated, no event that may be the cause is applied in a batch.
        """
        batch = self._reader.read(messages)
        if batch.events:
            return self._commit_batch(batch, late)
        self._reader.count_skipped(batch)
        self._store(messages)
        return None

    def _commit_batch(self, batch: RecordBatch, late: Late) -> Failure | None:
        try:
            if self._crashes.suspects and self._crashes.not_handled(self._session.connection(), batch.events):
                raise CrashedTooOften("a process crashed; each event is tried alone")
            cut = self._transaction.apply_batch(batch.events, late)
        except Exception as error:
            return self._classified(error)
        self._finish_batch(batch, cut)
        return None

    def _classified(self, error: Exception) -> Failure:
        """Classify an error; raise it if it ends the consumer."""
        return unless_fatal(classify(error, connected=self._session.usable()))

    def _finish_batch(self, batch: RecordBatch, cut: int | None) -> None:
        self._outage.end()
        if cut is None:
            self._reader.count_skipped(batch)
            self._store(batch.records)
            self._size = min(self._settings.batch_size, self._size * 2)
            return
        # Time was up, or the consumer is to stop. The records behind the cut are held, due at once.
        done = batch.before(cut)
        self._reader.count_skipped(done)
        self._store(done.records)
        self._backlog.hold_each(batch.records[cut:], self._clock.now())
        if self._stopping():
            return
        self._size = max(1, len(done.events))
        log.warning(
            "a batch of %d events took longer than %.0f s; the next one is limited to %d",
            len(batch.events),
            self._settings.budget,
            self._size,
        )

    def _isolate(self, messages: list[Message], late: Late, cause: Failure) -> None:
        """Find the events that make a batch fail: hold, park or dead-letter them, and apply all others."""
        error = cause.error
        log.info("a batch failed (%s: %s), looking for the event", type(error).__name__, error)
        before = self._failure_count()
        self._transaction.expect_duplicates()
        if cause.kind is FailureKind.CRASH:
            self._apply_one_by_one(messages, late)
            return
        self._apply_halves(messages, late)
        if self._failure_count() == before and not late():
            self._note_pipeline_failure(cause)

    def _apply_halves(self, messages: list[Message], late: Late) -> None:
        """Apply each half of a batch that failed; a small one record by record."""
        if len(messages) <= ONE_BY_ONE_SIZE:
            self._apply_one_by_one(messages, late)
            return
        middle = len(messages) // 2
        for part in (messages[:middle], messages[middle:]):
            half = self._backlog.hold_or_return(part)
            if not half:
                continue
            if late() or self._outage.waiting():
                self._backlog.hold_each(half, self._clock.now())
                continue
            failure = self._apply_batch(half, late)
            if failure is not None and failure.kind is FailureKind.OUTAGE:
                self._hold_for_outage(half, failure.error)
            elif failure is not None:
                self._apply_halves(half, late)

    def _apply_one_by_one(self, messages: list[Message], late: Late) -> None:
        for at, message in enumerate(messages):
            now = self._clock.now()
            if late() or self._outage.waiting():
                self._backlog.hold_each(self._backlog.hold_or_return(messages[at:]), now)
                return
            for free in self._backlog.hold_or_return([message]):
                if self._one_by_one.apply(free, NO_FAILURES):
                    self._store([free])

    def _handle_parked(self) -> None:
        """Handle parked events that are due, for up to UNPARK_SECONDS; read the window once a minute.

        The limit keeps the loop fetching records however many parked events are due.
        """
        now = self._clock.now
        if now() < self._unpark_at or self._outage.waiting():
            return
        late, more = self._late_after(min(UNPARK_SECONDS, self._settings.budget)), True
        try:
            if now() >= self._window_at:
                self._transaction.read_window()
                self._window_at = now() + WINDOW_SECONDS
            while more and not late():
                more = self._unparker.handle_next()
            self._outage.end()
        except NotDelivered as error:
            more = False
            log.warning("parked events wait: %s", error)
        except Exception as error:
            if self._classified(error).kind not in _NO_EVENTS_FAULT:
                raise
            more = False
            self._hold_for_outage([], error)
        self._more_parked = more
        self._unpark_at = now() if more else now() + UNPARK_SECONDS
        self._state.lag = self._source.lag()

    def _retry(self, late: Late) -> None:
        """Retry held partitions that are due: the first event alone, then the others in one transaction."""
        for partition in self._backlog.due(self._clock.now()):
            if late():
                return
            self._retry_partition(partition, late)

    def _retry_partition(self, partition: Partition, late: Late) -> None:
        held = self._backlog.take(partition)
        first, rest = held.messages[0], held.messages[1:]
        if self._outage.waiting():
            self._backlog.hold(held.messages, self._outage.retry_at, held.history)
        elif not held.history.attempts and not held.history.setbacks:
            self._apply_held(held.messages, late)
        elif not self._one_by_one.apply(first, held.history):
            self._backlog.hold_or_return(rest)
        else:
            self._store([first])
            if rest:
                self._apply_held(rest, late)

    def _apply_held(self, messages: list[Message], late: Late) -> None:
        """Apply a batch of one partition's held records; the others stay held, due at once."""
        batch, later = messages[: self._size], messages[self._size :]
        self._apply(batch, late)
        if later:
            self._backlog.hold(later, self._clock.now())

    def _hold_for_outage(self, messages: list[Message], error: Exception) -> None:
        self._transaction.expect_duplicates()
        self._backlog.hold_each(messages, self._outage.note_failure(error))

    def _store(self, messages: Sequence[Message]) -> None:
        if len(messages) == 1:
            self._source.store(messages)
        else:
            self._source.store({(m.topic(), m.partition()): m for m in messages}.values())

    def _failure_count(self) -> int:
        counters = self._counters
        return counters.failures + counters.transient + counters.dead_letters

    def _note_pipeline_failure(self, cause: Failure) -> None:
        """Stop using pipeline mode after several batches failed in it whose events all succeeded alone."""
        if cause.kind in _NO_EVENTS_FAULT or not self._transaction.pipelines:
            return
        self._pipeline_failures += 1
        if self._pipeline_failures >= MAX_PIPELINE_FAILURES:
            self._transaction.pipelines = False
            log.warning("handlers need each statement's result at once; pipeline mode is off from now on")
