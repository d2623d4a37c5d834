"""Events: lazy, tolerant of foreign records, clear about what cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from confluent_kafka import Message

from outbox_connectors.record import HEADERS
from outbox_consumers import Event
from outbox_consumers.errors import Reject, UnreadablePayload
from outbox_consumers.identity import position_id

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def event_of(value: bytes | None = b"{}", key: bytes | None = b"k", **headers: bytes | None) -> Event:
    message = Message(topic="t", partition=1, offset=7, key=key, value=value, headers=list(headers.items()))
    return Event.of(message)


def test_reads_every_header_of_the_contract() -> None:
    values: list[bytes | None] = [
        str(ID).encode(), b"OrderPlaced", b"2", b"2026-01-02T03:04:05.000006Z", b"00-a-b-01",
        b"corr", b"cause", b'{"tenant": "a"}',
    ]  # fmt: skip
    event = event_of(b'{"n": 1}', **dict(zip(HEADERS, values, strict=True)))
    assert (event.id, event.type, event.version) == (ID, "OrderPlaced", 2)
    assert event.occurred_at == datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    assert (event.traceparent, event.correlation_id, event.causation_id) == ("00-a-b-01", "corr", "cause")
    assert event.headers == {"tenant": "a"}
    assert (event.key, event.data, event.payload) == ("k", {"n": 1}, b'{"n": 1}')
    assert event.position == ("t", 1, 7)


def test_our_headers_stand_where_they_are_looked_for_first() -> None:
    assert HEADERS == (
        "id", "event_type", "event_version", "occurred_at", "traceparent", "correlation_id", "causation_id",
        "headers",
    )  # fmt: skip


def test_headers_in_another_order_are_found_too() -> None:
    event = event_of(x=b"1", event_type=b"A", id=str(ID).encode())
    assert (event.type, event.id) == ("A", ID)


def test_a_record_without_headers_is_known_by_its_position() -> None:
    event = event_of()
    assert not event.has_own_id
    assert event.packed_id == position_id("t", 1, 7)
    assert event.id.version == 5
    assert (event.type, event.version, event.occurred_at, event.headers) == ("", 1, None, {})


@pytest.mark.parametrize("value", [b"{no", b"\xff\xfe", b"", b"NaN x", b"[" * 100_000, b"1" * 5000])
def test_a_payload_that_is_no_json_rejects_itself(value: bytes) -> None:
    event = event_of(value)
    with pytest.raises(UnreadablePayload, match="is no JSON"):
        _ = event.data
    assert issubclass(UnreadablePayload, Reject)
    assert event.payload == value


def test_a_tombstone_has_no_data() -> None:
    assert event_of(None).data is None


def test_text_that_is_not_utf_8_is_named() -> None:
    event = event_of(key=b"\xff", event_type=b"\xfe", event_version=b"two", headers=b"{")
    for name in ("key", "type", "version", "headers"):
        with pytest.raises(UnreadablePayload):
            getattr(event, name)
    assert "xfe" in repr(event)


def test_a_time_python_does_not_know_is_none() -> None:
    assert event_of(occurred_at=b"infinity").occurred_at is None
    assert event_of(occurred_at=b"+10000-01-01T00:00:00.000000Z").occurred_at is None


def test_a_test_builds_an_event_as_a_handler_sees_it() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    event = Event("Placed", {"n": 1}, id=ID, key="k", version=3, occurred_at=moment, headers={"tenant": "a"})
    assert (event.id, event.type, event.data, event.key, event.version) == (ID, "Placed", {"n": 1}, "k", 3)
    assert (event.occurred_at, event.headers, event.attempt) == (moment, {"tenant": "a"}, 1)
    assert Event("Gone").data is None
    assert Event("Raw", b"\x00").payload == b"\x00"
