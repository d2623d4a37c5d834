"""Batches for an application's own loop, with the same guarantees as the loop of `Consumer.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from confluent_kafka import Message

from outbox_consumers.errors import BatchNotCommitted, Failed
from outbox_consumers.event import Event
from outbox_consumers.handlers.session import ConsumerSession
from outbox_consumers.inbox.claims import Claims
from outbox_consumers.loop.event_reader import EventReader
from outbox_consumers.loop.group_member import POLL_SECONDS, GroupMember, partition_of
from outbox_consumers.processes.counters import ConsumerCounters

MAX_YIELDS: Final = 3  # of the same batch


class Batch:
    """Some events; `transaction` yields those of them that are not handled yet."""

    def __init__(
        self, events: Sequence[Event], session: ConsumerSession, claims: Claims, counters: ConsumerCounters
    ) -> None:
        self.events = events
        self.done = False
        self._session = session
        self._claims = claims
        self._counters = counters

    def __len__(self) -> int:
        return len(self.events)

    @contextmanager
    def transaction(self) -> Iterator[tuple[psycopg.Connection[Any], Sequence[Event]]]:
        """Claim the events and commit at the end of the block; an exception rolls back.

        Yields the connection and the events to handle, in order. Raises SwallowedDatabaseError,
        TransactionEndedByHandler or UnprovenTransaction when the commit cannot be proven; then the batch
        is yielded again.
        """
        try:
            fresh = self._claims.claim(self._session.begin(), self.events)
            yield self._session.connection(), fresh
            self._session.commit()
        except BaseException:
            self._session.rollback()
            self._claims.careful = True
            raise
        self.done = True
        self._counters.batches += 1
        self._counters.processed += len(fresh)
        self._counters.duplicates += len(self.events) - len(fresh)

    def skip(self) -> None:
        """Skip the batch: its offsets are stored, its events are not claimed."""
        self.done = True
        self._counters.skipped += len(self.events)


class Batches:
    """Iterates over batches.

    A batch that was neither committed nor skipped is yielded again, so that a loop which continues after an
    error does not lose it. Raises BatchNotCommitted after MAX_YIELDS times in a row.
    """

    def __init__(
        self,
        source: GroupMember,
        session: ConsumerSession,
        claims: Claims,
        reader: EventReader,
        counters: ConsumerCounters,
        *,
        max_size: int,
        wait: float,
        clock: Callable[[], float],
        stopping: Callable[[], bool],
    ) -> None:
        self._source = source
        self._session = session
        self._claims = claims
        self._reader = reader
        self._counters = counters
        self._max_size = max_size
        self._wait = wait
        self._clock = clock
        self._stopping = stopping
        self._broken = False

    def __iter__(self) -> Iterator[Batch]:
        while not self._stopping():
            messages = self._gather()
            if not messages:
                continue
            events = [self._reader.event(message) for message in messages]
            for _ in range(MAX_YIELDS):
                batch = Batch(events, self._session, self._claims, self._counters)
                yield batch
                if batch.done or self._stopping():
                    break
            else:
                raise BatchNotCommitted(
                    f"a batch of {len(messages)} events was yielded {MAX_YIELDS} times and never committed",
                    remedy="handle it inside `with batch.transaction()`, or call batch.skip()",
                )
            if batch.done:
                self._source.store({partition_of(message): message for message in messages}.values())

    def _gather(self) -> list[Message]:
        """Fetch a batch; with `wait`, wait for more records to fill it."""
        if self._broken:
            raise Failed("an exception interrupted the Kafka client, which may have lost records")
        try:
            messages = self._fetch(self._max_size, POLL_SECONDS)
            end = self._clock() + self._wait
            while messages and len(messages) < self._max_size and self._clock() < end:
                more = self._fetch(self._max_size - len(messages), max(0.0, end - self._clock()))
                changed = set(self._changed)
                messages = [m for m in messages if partition_of(m) not in changed] + more
        except BaseException:
            self._broken = True
            raise
        return messages

    def _fetch(self, limit: int, timeout: float) -> list[Message]:
        messages = self._source.fetch(limit, timeout)
        self._changed = self._source.changed_partitions()
        if self._changed:
            self._claims.careful = True
        return messages
