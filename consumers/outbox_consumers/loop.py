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
from typing import Final

import psycopg
from confluent_kafka import Message

from outbox_consumers.backlog import NONE, Backlog
from outbox_consumers.counters import Counters
from outbox_consumers.deaths import Deaths, ProcessKiller
from outbox_consumers.drain import Drain
from outbox_consumers.effects import Effects
from outbox_consumers.errors import InboxUnusable, Stopped
from outbox_consumers.event import Event
from outbox_consumers.health import State
from outbox_consumers.outage import Outage, Outside
from outbox_consumers.retry import RetryStrategy, is_transient
from outbox_consumers.session import Session
from outbox_consumers.singles import Singles
from outbox_consumers.source import Partition, Source, partition_of

log = logging.getLogger("outbox_consumers")

POLL_SECONDS: Final = 0.25
IN_PLACE_RETRIES: Final = 2  # of a whole batch, after a deadlock and the like
FEW: Final = 32  # records that are tried one by one at once
PIPELINE_CHANCES: Final = 3
DRAIN_SECONDS: Final = 1.0
WINDOW_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How much the loop takes at once and how long it may work between two polls (seconds)."""

    batch_size: int
    budget: float
    retry: RetryStrategy


class Loop:
    """One run of a consumer, from joining the group to leaving it. Lives in one thread."""

    def __init__(
        self,
        source: Source,
        session: Session,
        effects: Effects,
        drain: Drain,
        deaths: Deaths,
        pace: Pace,
        counters: Counters,
        state: State,
        outside: Outside,
    ) -> None:
        self._source = source
        self._session = session
        self._effects = effects
        self._drain = drain
        self._deaths = deaths
        self._pace = pace
        self._counters = counters
        self._state = state
        self._outside = outside
        self._backlog = Backlog()
        self._outage = Outage(session, counters, outside)
        self._singles = Singles(
            session, effects, deaths, self._backlog, self._outage, pace.retry, counters, outside
        )
        self._take = pace.batch_size  # shrinks while batches exceed the budget
        self._misses = 0
        self._drain_at = 0.0
        self._window_at = 0.0

    def run(self, stopping: Callable[[], bool]) -> None:
        """Handle records until `stopping` says so; what is begun is finished, what waits is left to Kafka."""
        try:
            self._look_back(stopping)
            while not stopping():
                self.turn()
        finally:
            self._state.polled_at = 0.0
            self._session.rollback()
            self._leave()
            self._source.close()
            self._session.close()

    def _look_back(self, stopping: Callable[[], bool]) -> None:
        """Read what the inbox has forgotten and who has died; wait for the database if it goes meanwhile."""
        while not stopping():
            try:
                self._effects.look_at_window()
                self._deaths.look(self._session.connection())
                return
            except psycopg.Error as error:
                if not self._outage.explains(error):
                    raise
                self._outside.sleep(max(0.0, self._outage.note(error) - self._outside.clock()))

    def _leave(self) -> None:
        if self._session.usable():
            with suppress(psycopg.Error):
                self._deaths.leave(self._session.connection())

    def turn(self, longest_wait: float = POLL_SECONDS) -> None:
        """Fetch once, apply what came, and retry what is due."""
        now = self._outside.clock()
        wait = self._backlog.wait(now, longest_wait)
        messages = self._source.fetch(self._take, wait)
        self._state.polled_at = self._outside.clock()
        gone = self._source.gone()
        if gone:
            self._effects.expect_duplicates()
            self._backlog.drop(gone)
        messages = self._backlog.queue_behind(messages)
        deadline = self._outside.clock() + self._pace.budget
        if messages:
            self._apply(messages, deadline)
        self._retry(deadline)
        self._drain_parked(deadline)
        self._source.pause(self._backlog.longer_than(self._pace.batch_size))
        self._state.held = len(self._backlog)
        self._state.database = not self._outage

    def _apply(self, messages: list[Message], deadline: float) -> None:
        """Apply records in one transaction; one by one when that fails."""
        if self._outage.waiting():
            self._backlog.hold_each(messages, self._outage.back_at)
            return
        failure = self._whole(messages, deadline)
        for retry in range(IN_PLACE_RETRIES):
            if failure is None or not is_transient(failure) or self._outage.explains(failure):
                break
            self._counters.transient += 1
            self._outside.sleep(0.05 * (retry + self._outside.chance()))
            failure = self._whole(messages, deadline)
        if failure is None:
            return
        if self._outage.explains(failure):
            self._hold_for_database(messages, failure)
        else:
            self._find(messages, deadline, failure)

    def _whole(self, messages: Sequence[Message], deadline: float) -> Exception | None:
        """Apply records in one transaction and store their offsets, or say why not."""
        events = self._effects.read(messages)
        if events:
            return self._together_unless_deadly(messages, events, deadline)
        self._counters.skipped += len(messages)
        self._store(messages)
        return None

    def _together_unless_deadly(
        self, messages: Sequence[Message], events: Sequence[Event], deadline: float
    ) -> Exception | None:
        """Apply a batch, but one by one when a process has died and any of them could be the cause."""
        if self._deaths.suspects:
            try:
                if self._deaths.unseen(self._session.connection(), events):
                    return ProcessKiller("a process died, each event is tried alone")
            except psycopg.Error as error:
                return error
        return self._together(messages, events, deadline)

    def _together(
        self, messages: Sequence[Message], events: Sequence[Event], deadline: float
    ) -> Exception | None:
        """Apply and store a batch, or say why not."""
        try:
            done = self._effects.together(events, deadline)
        except (InboxUnusable, Stopped):
            raise
        except Exception as error:
            return error
        self._after(messages, events, done)
        return None

    def _after(self, messages: Sequence[Message], events: Sequence[Event], done: int) -> None:
        self._outage.over()
        if done == len(events):
            self._counters.skipped += len(messages) - len(events)
            self._store(messages)
            self._take = min(self._pace.batch_size, self._take * 2)
            return
        # The budget cut the batch short. What follows the cut waits in order, due at once.
        cut = next(i for i, message in enumerate(messages) if message is events[done].message)
        self._counters.skipped += cut - done
        self._store(messages[:cut])
        self._take = max(1, done)
        log.warning(
            "a batch of %d took longer than %.0f s; going on with %d",
            len(events),
            self._pace.budget,
            self._take,
        )
        self._backlog.hold_each(messages[cut:], self._outside.clock())

    def _find(self, messages: list[Message], deadline: float, cause: Exception) -> None:
        """Find the events that make a batch fail; hold their partitions from there on, apply all others."""
        log.info("a batch failed (%s: %s), looking for the event", type(cause).__name__, cause)
        before = self._troubles()
        self._effects.expect_duplicates()
        if isinstance(cause, ProcessKiller):
            self._one_by_one(messages, deadline)
            return
        self._halve(messages, deadline)
        if self._troubles() == before:
            self._note_miss(cause)

    def _halve(self, messages: list[Message], deadline: float) -> None:
        """Apply a batch that failed as two; a few records one by one. One bad event costs two batches."""
        if len(messages) <= FEW:
            self._one_by_one(messages, deadline)
            return
        middle = len(messages) // 2
        for part in (messages[:middle], messages[middle:]):
            half = self._backlog.queue_behind(part)
            if not half:
                continue
            if self._outside.clock() > deadline or self._outage.waiting():
                self._backlog.hold_each(half, self._outside.clock())
                continue
            failure = self._whole(half, deadline)
            if failure is not None and self._outage.explains(failure):
                self._hold_for_database(half, failure)
            elif failure is not None:
                self._halve(half, deadline)

    def _one_by_one(self, messages: list[Message], deadline: float) -> None:
        for at, message in enumerate(messages):
            now = self._outside.clock()
            if now > deadline or self._outage.waiting():
                self._backlog.hold_each(self._backlog.queue_behind(messages[at:]), now)
                return
            if partition_of(message) in self._backlog:
                self._backlog.queue_behind([message])
            elif self._singles.apply(message, NONE):
                self._store([message])

    def _drain_parked(self, deadline: float) -> None:
        """Handle parked events that are due, about once a second; look at the window once a minute."""
        clock = self._outside.clock
        if clock() < self._drain_at or self._outage.waiting():
            return
        try:
            if clock() >= self._window_at:
                self._effects.look_at_window()
                self._window_at = clock() + WINDOW_SECONDS
            while clock() < deadline and self._drain.one():
                pass
            self._outage.over()
        except Exception as error:
            if not is_transient(error):
                raise
            self._hold_for_database([], error)
        self._drain_at = clock() + DRAIN_SECONDS
        self._state.lag = self._source.lag()

    def _retry(self, deadline: float) -> None:
        """Try held partitions whose time has come: the first event alone, then the others together."""
        for partition in self._backlog.due(self._outside.clock()):
            if self._outside.clock() > deadline:
                return
            self._retry_partition(partition, deadline)

    def _retry_partition(self, partition: Partition, deadline: float) -> None:
        held = self._backlog.take(partition)
        first, rest = held.messages[0], held.messages[1:]
        if self._outage.waiting():
            self._backlog.hold(held.messages, self._outage.back_at, held.trouble)
        elif not held.trouble.attempts and not held.trouble.setbacks:
            self._apply_some(held.messages, deadline)
        elif not self._singles.apply(first, held.trouble):
            self._backlog.queue_behind(rest)
        else:
            self._store([first])
            if rest:
                self._apply_some(rest, deadline)

    def _apply_some(self, messages: list[Message], deadline: float) -> None:
        """Apply a batch of one partition's waiting records; the others stay held, due at once."""
        batch, later = messages[: self._take], messages[self._take :]
        self._apply(batch, deadline)
        if later:
            self._backlog.hold(later, self._outside.clock())

    def _hold_for_database(self, messages: list[Message], error: Exception) -> None:
        self._effects.expect_duplicates()
        self._backlog.hold_each(messages, self._outage.note(error))

    def _store(self, messages: Sequence[Message]) -> None:
        if len(messages) == 1:
            self._source.store(messages)
        else:
            self._source.store({(m.topic(), m.partition()): m for m in messages}.values())

    def _troubles(self) -> int:
        counters = self._counters
        return counters.failures + counters.transient + counters.dead_letters

    def _note_miss(self, cause: Exception) -> None:
        """Leave pipeline mode for good when batches fail in it whose events all succeed alone."""
        if is_transient(cause) or not self._effects.pipelines:
            return
        self._misses += 1
        if self._misses >= PIPELINE_CHANCES:
            self._effects.pipelines = False
            log.warning("handlers need each statement's answer at once; going on without pipeline mode")
