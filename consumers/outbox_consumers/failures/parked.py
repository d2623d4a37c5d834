"""Parked events: a failed event and the later events of its key wait in a table, in order.

A parked event no longer holds up its partition, so other aggregates continue at once. It is claimed in the
same transaction: from then on the row in the table, not Kafka, guarantees that it will be handled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from outbox_consumers import sql
from outbox_consumers.event import Event
from outbox_consumers.failures.dead_letter import NO_FAILURES, FailureHistory, describe, event_of, row

_LONGEST_QUEUE: Final = 2000  # bytes; an index entry holds 2,700 at most, a key may be longer


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """The first event of a queue, locked by the transaction that took it."""

    position: int
    event: Event
    queue: bytes
    history: FailureHistory


def queue_of(event: Event) -> bytes:
    """Return the name of the queue of an event: its topic and key. An event without a key has its own queue.

    `redrive_dead_letters.sql` forms the same names.
    """
    key = event.message.key()
    if key is None:
        return event.packed_id
    queue = (event.message.topic() or "").encode() + b"\0" + key
    return queue if len(queue) <= _LONGEST_QUEUE else hashlib.sha256(queue).digest()


class Parked:
    """Reads and writes the parked events of one consumer.

    `queues` holds the queues found by the last `read_queues`. If another process has emptied one since,
    the only consequence is that this process parks an event which it could have handled.
    """

    def __init__(self, consumer: str, table: str) -> None:
        parked = sql.parked(table)
        self.queues: set[bytes] = set()
        self._consumer = consumer
        self._park = sql.compose("park_event", parked=parked)
        self._queues = sql.compose("parked_queues", parked=parked)
        self._take = sql.compose("take_parked", parked=parked)
        self._unpark = sql.compose("unpark", parked=parked)
        self._postpone = sql.compose("postpone_parked", parked=parked)

    def read_queues(self, cursor: psycopg.Cursor[Any]) -> None:
        """Read which queues exist. To be called after every claim that expects duplicates.

        The previous owner of the partition may have parked earlier events while the claim waited for it.
        """
        self.queues = {queue for (queue,) in cursor.execute(self._queues, {"consumer": self._consumer})}

    def split(self, events: Sequence[Event]) -> tuple[Sequence[Event], Sequence[Event]]:
        """Separate the events that may be handled from those whose aggregate has parked events."""
        if not self.queues:
            return events, ()
        free: list[Event] = []
        waiting: list[Event] = []
        for event in events:
            (waiting if queue_of(event) in self.queues else free).append(event)
        return free, waiting

    def park(
        self,
        cursor: psycopg.Cursor[Any],
        event: Event,
        history: FailureHistory = NO_FAILURES,
        error: BaseException | None = None,
        delay: float = 0.0,
    ) -> None:
        """Add an event to its queue, in the caller's transaction. `delay` is in seconds."""
        text = describe(error) if error else "waits behind a failed event of the same key"
        values = row(self._consumer, event, history, text) | {"queue": queue_of(event), "delay": delay}
        cursor.execute(self._park, values)

    def take(self, conn: psycopg.Connection[Any]) -> ParkedEvent | None:
        """Lock the first event of a queue that is due. None: no event is due and unlocked."""
        cursor = psycopg.Cursor(conn, row_factory=dict_row)
        found = cursor.execute(self._take, {"consumer": self._consumer}).fetchone()
        if found is None:
            return None
        event = event_of(found)
        event._attempt = found["attempts"] + 1
        history = FailureHistory(found["attempts"], 0, found["first_failed_at"])
        return ParkedEvent(found["position"], event, found["queue"], history)

    def remove(self, cursor: psycopg.Cursor[Any], parked: ParkedEvent) -> bool:
        """Delete an event from its queue, in the caller's transaction. False: it is not there any more."""
        return cursor.execute(self._unpark, {"position": parked.position}).rowcount == 1

    def postpone(
        self,
        cursor: psycopg.Cursor[Any],
        parked: ParkedEvent,
        attempts: int,
        error: str,
        delay: float,
    ) -> None:
        """Make an event due again in `delay` seconds; it stays the first one of its queue."""
        values = {"position": parked.position, "attempts": attempts, "error": error, "delay": delay}
        cursor.execute(self._postpone, values)
