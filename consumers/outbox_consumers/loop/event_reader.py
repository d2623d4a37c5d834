"""Make events of Kafka records of any origin: find their type, id and handler, and report suspicious ids.

No content of a record raises an error here, with one exception: a consumer that has seen only records
without a type stops, since the type is then probably in another header and skipping would lose every event.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Message

from outbox_connectors.record_headers import (
    HEADER_ERRORS,
    Headers,
    give_up_headers,
    read_headers,
)
from outbox_consumers.errors import UntypedRecords
from outbox_consumers.event import Event, about
from outbox_consumers.handlers.routes import REJECT_UNREADABLE, Route, Routes
from outbox_consumers.identity import ID_HEADER, NIL, TYPE_HEADER, IdentityRules, packed_uuid, type_of
from outbox_consumers.inbox.retention import is_stale
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")

_ABOVE_NIL: Final = NIL + b"\0"  # every other id is above it
_MOST_NAMES: Final = 20
_LONGEST_NAME: Final = 80
_LONGEST_NUMBER: Final = 20  # digits; more are no number of a sequence


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records in the order in which Kafka delivered them, and the events of those that have a handler.

    Each event knows the place of its record (`Event._place`), so nothing has to be searched for when a
    batch is cut short.
    """

    records: Sequence[Message]
    events: Sequence[Event]

    def before(self, place: int) -> RecordBatch:
        """Return the part of the batch in front of a place."""
        return RecordBatch(self.records[:place], [event for event in self.events if event._place < place])


@dataclass(slots=True)
class RecordsSeen:
    """What a consumer has seen since it started. `derived`: whether there was an id that is no UUID."""

    typed: bool = False
    derived: bool = False
    untyped_topics: set[str] = field(default_factory=set)
    falling: set[tuple[str, int]] = field(default_factory=set)
    highest: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # partition: offset, id


class EventReader:
    """Reads the records of one run of a consumer."""

    def __init__(self, routes: Routes, naming: IdentityRules, counters: ConsumerCounters) -> None:
        self.seen = RecordsSeen()
        self._routes = routes
        self._naming = naming
        self._counters = counters
        self._window = _ABOVE_NIL

    def forget_below(self, window: bytes) -> None:
        """Set the id below which the inbox remembers nothing."""
        self._window = max(window, _ABOVE_NIL)

    def read(self, messages: Sequence[Message]) -> RecordBatch:
        """Make events of the records that have a handler.

        Raises UntypedRecords when none of the records so far has had a type.
        """
        handlers, window, new = self._routes.by_type, self._window, Event.__new__
        usual_type = TYPE_HEADER if self._naming.is_usual else None
        events: list[Event] = []
        untyped: Message | None = None
        next_headers = map(Message.headers, messages).__next__  # see `ask_headers`; this costs less
        for place, message in enumerate(messages):
            try:
                headers: Any = next_headers()
            except HEADER_ERRORS:
                give_up_headers(message)
                headers = None
            # Records of our own outbox, without function calls: this runs for every event of a bulk consumer.
            if headers.__class__ is list and len(headers) > 1:
                (first, text), (second, kind) = headers[0], headers[1]
                route = handlers.get(kind) if second == usual_type and first == ID_HEADER else None
                if route is not None and text.__class__ is bytes and len(text) == 36:
                    event = new(Event)
                    event.message = message
                    event._place = place
                    event.packed_id = packed = packed_uuid(text)
                    event._route = route
                    if packed >= window:
                        events.append(event)
                        continue
                    if packed and packed != NIL:
                        if self._keep_stale(event):
                            events.append(event)
                        continue
            suspect = self._read_foreign(message, place, events)
            if untyped is None:
                untyped = suspect
        if not self.seen.typed:
            self._require_types(events, untyped)
        return RecordBatch(messages, events)

    def event(self, message: Message) -> Event:
        """Make the event of a record of any type, and report a missing or decreasing id."""
        event = Event.of(message, self._naming)
        text = getattr(event, "id_text", b"")
        if text:
            self.seen.derived = True
            self._note_number(event, text)
        elif not event.has_own_id:
            self._note_missing_id(event)
        return event

    def count_skipped(self, batch: RecordBatch) -> None:
        """Count the records of a finished batch that have no handler, separately those without a type."""
        skipped, untyped = len(batch.records) - len(batch.events), 0
        if skipped and self.seen.untyped_topics and self._routes.untyped is None:
            untyped = sum(self._is_untyped(message) for message in batch.records)
        self._counters.untyped += untyped
        self._counters.skipped += skipped - untyped

    def _is_untyped(self, message: Message) -> bool:
        headers = read_headers(message)
        return headers is not None and type_of(headers, self._naming) is None

    def _keep_stale(self, event: Event) -> bool:
        """Route an event from before the inbox's window as the consumer's `stale` says. False: skip it."""
        if self._routes.trusts_stale or not is_stale(event.packed_id, self._window):
            return True
        self._counters.stale += 1
        if self._routes.stale is None:
            return False
        event._route = self._routes.stale
        return True

    def _read_foreign(self, message: Message, place: int, events: list[Event]) -> Message | None:
        """Read a record that is not laid out like those of our outbox, or has no handler.

        Returns the record if it has no type and this consumer must not skip such records.
        """
        headers = read_headers(message)
        kind = None if headers is None else type_of(headers, self._naming)
        route: Route | None = REJECT_UNREADABLE
        if kind is not None:
            self.seen.typed = True
            route = self._routes.find(kind)
        elif headers is not None:
            self._note_untyped(message, headers)
            route = self._routes.untyped
        if route is not None:
            event = self.event(message)
            event._place = place
            event._route = route
            if event.packed_id >= self._window or self._keep_stale(event):
                events.append(event)
        if kind is not None or headers is None or _is_internal(message, headers):
            return None
        return message if self._routes.stops_untyped else None

    def _require_types(self, events: Sequence[Event], untyped: Message | None) -> None:
        """Raise UntypedRecords if there were records without a type and none with one."""
        self.seen.typed = any(event.raw_type is not None for event in events)
        if untyped is None or self.seen.typed:
            return
        names = [name for name, _ in read_headers(untyped) or []]
        likely = [name for name in dict.fromkeys(names) if _may_be_type(name)]
        named = repr(likely[0]) if len(likely) == 1 else "..."
        raise UntypedRecords(
            f"no record so far has an event type: {_place(untyped)} has no header "
            f"{self._naming.type_header}, {_listed(names)}",
            remedy=f"name the header that carries it, Consumer(..., type_header={named}), "
            'or set untyped="skip" or "dead_letter" if these records are not events for it',
        )

    def _note_untyped(self, message: Message, headers: Headers) -> None:
        topic = message.topic() or ""
        if topic in self.seen.untyped_topics:
            return
        self.seen.untyped_topics.add(topic)
        names = _listed([name for name, _ in headers])
        header = self._naming.type_header
        log.warning("%s has no event type (header %s), %s", _place(message), header, names)

    def _note_missing_id(self, event: Event) -> None:
        if not self._counters.without_id:
            log.warning(
                "%r has no id (header %s): a second delivery by Kafka is recognised, "
                "but not a second record of its producer",
                event,
                self._naming.id_header,
                extra=about(event),
            )
        self._counters.without_id += 1

    def _note_number(self, event: Event, text: bytes) -> None:
        """Count and report an id that is a lower number than an earlier one of its partition."""
        if not text.isdigit() or len(text) > _LONGEST_NUMBER:
            return
        topic, partition, offset = event.position
        place, number = (topic, partition), int(text)
        before, highest = self.seen.highest.get(place, (-1, -1))
        if offset <= before:
            return  # delivered again
        self.seen.highest[place] = (offset, max(number, highest))
        if number >= highest:
            return
        self._counters.falling_ids += 1
        if place not in self.seen.falling:
            self.seen.falling.add(place)
            log.warning(
                "%s has the id %d after %d: either two transactions committed in the other order, or the ids "
                "started again (RESTART IDENTITY, a restore); in that case new events look handled until "
                "id_scope gives the topic a new scope",
                _place(event.message), number, highest, extra=about(event),
            )  # fmt: skip


def _is_internal(message: Message, headers: Headers) -> bool:
    """Return whether a record without a type is certainly not an event.

    Heartbeats of Debezium and other internal topics (`__...`), its logical messages (`<prefix>.message`,
    no headers), and tombstones that only let a compacted topic forget a key.
    """
    topic = message.topic() or ""
    return topic.startswith("__") or (not headers and (message.value() is None or topic.endswith(".message")))


def _may_be_type(name: str) -> bool:
    flat = name.lower().replace("-", "").replace("_", "")
    return flat.endswith("type") and not flat.endswith("contenttype")


def _place(message: Message) -> str:
    return f"record {message.topic()}/{message.partition()}/{message.offset()}"


def _listed(names: Sequence[str]) -> str:
    """List names of headers in one short line, whatever characters and however many they are."""
    if not names:
        return "it has no headers"
    shown = ", ".join(ascii(name[:_LONGEST_NAME])[1:-1] for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"its headers are {shown}{more}"
