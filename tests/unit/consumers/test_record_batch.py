"""Records and their events: each event knows the place of its record."""

from __future__ import annotations

from confluent_kafka import Message

from outbox_connectors.record_headers import Headers
from outbox_consumers.event import Event
from outbox_consumers.handlers.routes import Route, Routes
from outbox_consumers.identity import USUAL
from outbox_consumers.loop.event_reader import EventReader
from outbox_consumers.processes.counters import ConsumerCounters

ID = b"0190a5a0-0000-7000-8000-00000000000"


def record(offset: int, kind: bytes) -> Message:
    headers: Headers = [("id", ID + str(offset).encode()), ("event_type", kind)]
    return Message(topic="orders", partition=0, offset=offset, headers=headers)


def foreign(offset: int) -> Message:
    """Make a record whose headers are in another order than ours."""
    headers: Headers = [("event_type", b"Placed"), ("id", ID + str(offset).encode())]
    return Message(topic="orders", partition=0, offset=offset, headers=headers)


def reader(counters: ConsumerCounters) -> EventReader:
    routes = Routes()
    routes.add(Route("Placed", lambda conn, event: None, 0, False))
    return EventReader(routes, USUAL, counters)


def offsets(events: list[Event]) -> list[int]:
    return [event.position[2] for event in events]


def test_events_know_the_places_of_their_records() -> None:
    counters = ConsumerCounters()
    records = [
        record(0, b"Other"),
        record(1, b"Placed"),
        foreign(2),
        record(3, b"Other"),
        record(4, b"Placed"),
    ]
    batch = reader(counters).read(records)
    assert [event._place for event in batch.events] == [1, 2, 4]
    assert all(batch.records[event._place] is event.message for event in batch.events)


def test_a_batch_is_cut_in_front_of_a_place() -> None:
    counters = ConsumerCounters()
    events = reader(counters)
    batch = events.read(
        [record(0, b"Other"), record(1, b"Placed"), record(2, b"Other"), record(3, b"Placed")]
    )
    done = batch.before(batch.events[1]._place)
    assert (len(done.records), offsets(list(done.events))) == (3, [1])
    events.count_skipped(done)
    assert counters.skipped == 2
