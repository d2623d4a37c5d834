"""Recognise events that an earlier version handled, which stored ids that are no UUIDs without a scope.

Such an id in the inbox does not say its source: it may be this event, or one of another topic with the same
number. So the application names the topics that it has consumed with that version. Until it does, the
consumer stops at such an id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import psycopg

from outbox_consumers import sql
from outbox_consumers.errors import UndeclaredIds, UsageError
from outbox_consumers.event import Event
from outbox_consumers.identity import unscoped_id
from outbox_consumers.inbox.claims import Claims, PackedIds
from outbox_consumers.loop.event_reader import RecordsSeen


def checked_topics(topics: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the topics that the application names. Raises UsageError if they are not a list of names."""
    if topics is None:
        return None
    if isinstance(topics, str) or not all(isinstance(topic, str) and topic for topic in topics):
        raise UsageError(f"unscoped_ids={topics!r}: it is a list of topics", remedy="write [...], or ()")
    return tuple(topics)


class ScopedClaims:
    """Claims that leave out events which are in the inbox under the id that an earlier version gave them.

    `topics` are the topics which that version has consumed, as names or as patterns that begin with `^`;
    None: not known. Costs a statement for each batch with ids that are no UUIDs, and nothing otherwise.
    """

    def __init__(
        self, claims: Claims, consumer: str, table: str, topics: tuple[str, ...] | None, seen: RecordsSeen
    ) -> None:
        self._claims = claims
        self._consumer = consumer
        self._topics = topics
        self._seen = seen
        self._seen_events = sql.compose("seen_events", inbox=sql.table(table))

    @property
    def careful(self) -> bool:
        """Whether the next claim expects duplicates."""
        return self._claims.careful

    @careful.setter
    def careful(self, value: bool) -> None:
        self._claims.careful = value

    def claim(self, cursor: psycopg.Cursor[Any], events: Sequence[Event]) -> Sequence[Event]:
        """Claim the events of a batch and return those to handle.

        Raises UndeclaredIds for an event that may be handled already if the topics are not known.
        """
        fresh = self._claims.claim(cursor, events)
        if not self._seen.derived or self._topics == ():
            return fresh
        suspects = {unscoped_id(event.id_text): event for event in fresh if self._may_be_old(event)}
        if not suspects:
            return fresh
        values = {"consumer": self._consumer, "ids": PackedIds.of(list(suspects))}
        found = {row[0] for row in cursor.execute(self._seen_events, values, binary=True)}
        if not found:
            return fresh
        if self._topics is None:
            raise _undeclared(suspects[min(found)])
        return [
            event for event in fresh if not (self._may_be_old(event) and unscoped_id(event.id_text) in found)
        ]

    def give_back(self, cursor: psycopg.Cursor[Any], events: Sequence[Event]) -> None:
        """Undo the claim of events that were not handled."""
        self._claims.give_back(cursor, events)

    def _may_be_old(self, event: Event) -> bool:
        """Return whether an earlier version may have stored the id of this event."""
        if not getattr(event, "id_text", b""):
            return False
        topic = event.position[0]
        return self._topics is None or any(
            re.search(name, topic) is not None if name.startswith("^") else name == topic
            for name in self._topics
        )


def _undeclared(event: Event) -> UndeclaredIds:
    topic, partition, offset = event.position
    text = ascii(event.id_text.decode("utf-8", "backslashreplace"))
    return UndeclaredIds(
        f"the inbox has the id {text} of record {topic}/{partition}/{offset} as earlier versions stored it, "
        "without its source: either this event was handled, or another one with that id",
        remedy="name the topics that this consumer has handled with such a version, "
        f'Consumer(..., unscoped_ids=["{topic}"]), or () for none',
    )
