"""The loop: fetch, apply, store; hold what fails and let the rest go on.

    records --> held partition? --> its backlog (in order, until due)
            --> together: one transaction --ok--> store offsets
                                 |fails
                                 v
            --> halves of it, down to one by one, in order --ok--> store
                                 |fails
                                 v
                    hold this partition from here, with a growing delay

The loop never sleeps while it could poll Kafka: waiting records wait in the backlog.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

import psycopg
from confluent_kafka import Message

from outbox_consumers.errors import InboxUnusable, NotDelivered, ReadOnlyDatabase, Stopped
from outbox_consumers.failures.dead_letter import NO_FAILURES
from outbox_consumers.failures.process_crashes import CrashedTooOften, ProcessCrashes
from outbox_consumers.handlers.retry import RetryStrategy, is_transient
from outbox_consumers.handlers.session import ConsumerSession
from outbox_consumers.loop.backlog import Backlog
from outbox_consumers.loop.event_reader import EventReader, RecordBatch
from outbox_consumers.loop.group_member import GroupMember, Partition, partition_of
from outbox_consumers.loop.one_by_one import OneByOne
from outbox_consumers.loop.outage import Clock, Outage
from outbox_consumers.loop.transaction import EventTransaction
from outbox_consumers.loop.unpark import Unparker
from outbox_consumers.processes.counters import ConsumerCounters
from outbox_consumers.processes.health import ProcessState

log = logging.getLogger("outbox_consumers")

POLL_SECONDS: Final = 0.25
IN_PLACE_RETRIES: Final = 2  # of a whole batch, after a deadlock and the like
ONE_BY_ONE_AT_MOST: Final = 32  # records that are tried one by one at once
MAX_PIPELINE_FAILURES: Final = 3
UNPARK_SECONDS: Final = 1.0
WINDOW_SECONDS: Final = 60.0
# What opening a session may raise: a server that was failed over can be a standby for a while.
_DATABASE: Final = (psycopg.Error, ReadOnlyDatabase)

Late: TypeAlias = Callable[[], bool]  # whether nothing new is to be begun in this turn


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How much the loop takes at once and how long it may work between two polls (seconds)."""

    batch_size: int
    budget: float
    retry: RetryStrategy


class Loop:
    """One run of a consumer, from joining the group to leaving it. Lives in one thread."""

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
        self._outage = Outage(session, counters, clock)
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
        self._more_parked = False  # are due already
        self._window_at = 0.0
        self._stopping: Callable[[], bool] = lambda: False

    def run(self, stopping: Callable[[], bool]) -> None:
        """Handle records until `stopping` says so; what is begun is finished, what waits is left to Kafka."""
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
        """Read what the inbox has forgotten and who has died; wait for the database if it goes meanwhile."""
        while not stopping():
            try:
                self._transaction.read_window()
                self._crashes.find_crashed(self._session.connection())
                return
            except _DATABASE as error:
                if not self._outage.explains(error):
                    raise
                self._clock.sleep(max(0.0, self._outage.note_failure(error) - self._clock.now()))

    def _leave(self) -> None:
        if self._session.usable():
            with suppress(psycopg.Error):
                self._crashes.leave(self._session.connection())

    def run_once(self, longest_wait: float = POLL_SECONDS) -> None:
        """Fetch once, apply what came, and retry what is due."""
        now = self._clock.now()
        busy = self._more_parked and not self._outage.waiting()
        wait = 0.0 if busy else self._backlog.seconds_until_due(now, longest_wait)
        messages = self._source.fetch(self._size, wait)
        self._state.polled_at = self._clock.now()
        gone = self._source.changed_partitions()
        if gone:
            self._transaction.expect_duplicates()
            self._backlog.drop(gone)
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
        """Say from when on nothing new is begun in a turn: its time is up, or the consumer is to stop."""
        clock, end, stopping = self._clock.now, self._clock.now() + seconds, self._stopping
        return lambda: clock() > end or stopping()

    def _apply(self, messages: list[Message], late: Late) -> None:
        """Apply records in one transaction; one by one when that fails."""
        if self._outage.waiting():
            self._backlog.hold_each(messages, self._outage.retry_at)
            return
        failure = self._apply_batch(messages, late)
        for retry in range(IN_PLACE_RETRIES):
            if failure is None or not is_transient(failure) or self._outage.explains(failure):
                break
            self._counters.transient += 1
            self._clock.sleep(0.05 * (retry + self._clock.random()))
            failure = self._apply_batch(messages, late)
        if failure is None:
            return
        if self._outage.explains(failure):
            self._hold_for_outage(messages, failure)
        else:
            self._isolate(messages, late, failure)

    def _apply_batch(self, messages: Sequence[Message], late: Late) -> Exception | None:
        """Apply records in one transaction and store their offsets, or say why not."""
        batch = self._reader.read(messages)
        if batch.events:
            return self._apply_unless_suspect(batch, late)
        self._reader.count_skipped(batch)
        self._store(messages)
        return None

    def _apply_unless_suspect(self, batch: RecordBatch, late: Late) -> Exception | None:
        """Apply a batch, but one by one when a process has died and any of them could be the cause."""
        if self._crashes.suspects:
            try:
                if self._crashes.not_handled(self._session.connection(), batch.events):
                    return CrashedTooOften("a process died, each event is tried alone")
            except _DATABASE as error:
                return error
        return self._commit_batch(batch, late)

    def _commit_batch(self, batch: RecordBatch, late: Late) -> Exception | None:
        """Apply and store a batch, or say why not."""
        try:
            cut = self._transaction.apply_batch(batch.events, late)
        except (InboxUnusable, Stopped):
            raise
        except Exception as error:
            return error
        self._finish_batch(batch, cut)
        return None

    def _finish_batch(self, batch: RecordBatch, cut: int | None) -> None:
        self._outage.end()
        if cut is None:
            self._reader.count_skipped(batch)
            self._store(batch.records)
            self._size = min(self._settings.batch_size, self._size * 2)
            return
        # The budget or a stop cut the batch short. What follows the cut waits in order, due at once.
        done = batch.before(cut)
        self._reader.count_skipped(done)
        self._store(done.records)
        self._backlog.hold_each(batch.records[cut:], self._clock.now())
        if self._stopping():
            return
        self._size = max(1, len(done.events))
        log.warning(
            "a batch of %d took longer than %.0f s; going on with %d",
            len(batch.events),
            self._settings.budget,
            self._size,
        )

    def _isolate(self, messages: list[Message], late: Late, cause: Exception) -> None:
        """Find the events that make a batch fail; hold their partitions from there on, apply all others."""
        log.info("a batch failed (%s: %s), looking for the event", type(cause).__name__, cause)
        before = self._failure_count()
        self._transaction.expect_duplicates()
        if isinstance(cause, CrashedTooOften):
            self._apply_one_by_one(messages, late)
            return
        self._apply_halves(messages, late)
        if self._failure_count() == before and not late():
            self._note_pipeline_failure(cause)

    def _apply_halves(self, messages: list[Message], late: Late) -> None:
        """Apply a batch that failed as two; a few records one by one. One bad event costs two batches."""
        if len(messages) <= ONE_BY_ONE_AT_MOST:
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
            if failure is not None and self._outage.explains(failure):
                self._hold_for_outage(half, failure)
            elif failure is not None:
                self._apply_halves(half, late)

    def _apply_one_by_one(self, messages: list[Message], late: Late) -> None:
        for at, message in enumerate(messages):
            now = self._clock.now()
            if late() or self._outage.waiting():
                self._backlog.hold_each(self._backlog.hold_or_return(messages[at:]), now)
                return
            if partition_of(message) in self._backlog:
                self._backlog.hold_or_return([message])
            elif self._one_by_one.apply(message, NO_FAILURES):
                self._store([message])

    def _handle_parked(self) -> None:
        """Handle parked events that are due, for a second at most; look at the window once a minute.

        However many are due, and fail again at once, records go on to be fetched in between.
        """
        clock = self._clock.now
        if clock() < self._unpark_at or self._outage.waiting():
            return
        late, more = self._late_after(min(UNPARK_SECONDS, self._settings.budget)), True
        try:
            if clock() >= self._window_at:
                self._transaction.read_window()
                self._window_at = clock() + WINDOW_SECONDS
            while more and not late():
                more = self._unparker.handle_next()
            self._outage.end()
        except NotDelivered as error:
            more = False
            log.warning("parked events wait: %s", error)
        except Exception as error:
            if not is_transient(error):
                raise
            more = False
            self._hold_for_outage([], error)
        self._more_parked = more
        self._unpark_at = clock() if more else clock() + UNPARK_SECONDS
        self._state.lag = self._source.lag()

    def _retry(self, late: Late) -> None:
        """Try held partitions whose time has come: the first event alone, then the others together."""
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
        """Apply a batch of one partition's waiting records; the others stay held, due at once."""
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

    def _note_pipeline_failure(self, cause: Exception) -> None:
        """Leave pipeline mode for good when batches fail in it whose events all succeed alone."""
        if is_transient(cause) or not self._transaction.pipelines:
            return
        self._pipeline_failures += 1
        if self._pipeline_failures >= MAX_PIPELINE_FAILURES:
            self._transaction.pipelines = False
            log.warning("handlers need each statement's answer at once; going on without pipeline mode")
