"""How a record is shown: nothing is lost, nothing is executed by a terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from outbox_pipeline.servers import topic_reader

WHEN = datetime(2026, 11, 29, 12, 0, 0, 5000, tzinfo=UTC)
ID = b"01a2298c-83fe-7433-9df3-79db46703dab"


def arrived(
    value: bytes | None = b'{"total": 99}',
    *,
    key: bytes | None = b"42",
    headers: tuple[tuple[str, bytes | None], ...] = (
        ("id", ID),
        ("event_type", b"OrderPlaced"),
        ("event_version", b"1"),
        ("occurred_at", b"2026-11-29T11:59:59.999000Z"),
        ("traceparent", None),
        ("correlation_id", b"c-1"),
        ("causation_id", None),
        ("headers", b'{"tenant": "acme"}'),
    ),
) -> topic_reader.Arrival:
    return topic_reader.Arrival("outbox.event.order", 3, 17, WHEN, key, value, headers)


def test_row_shows_time_topic_key_type_id_and_payload() -> None:
    assert topic_reader.row(arrived()) == (
        "2026-11-29T11:59:59.999000Z",
        "outbox.event.order",
        "42",
        "OrderPlaced",
        ID.decode(),
        '{"total": 99}',
    )


def test_row_of_a_tombstone_and_of_a_foreign_record() -> None:
    assert topic_reader.row(arrived(None))[5] == "(tombstone)"
    foreign = topic_reader.row(arrived(b"plain", key=None, headers=()))
    assert foreign == (
        "2026-11-29T12:00:00.005000+00:00",
        "outbox.event.order",
        "(no key)",
        "(no type)",
        "(no id)",
        "plain",
    )


def test_row_escapes_what_a_terminal_would_obey() -> None:
    payload = '{"note": "\x1b]0;owned\x07 \u202e\r\n\t\x9b31m"}'.encode()
    shown = topic_reader.row(arrived(payload))[5]
    assert shown == r'{"note": "\x1b]0;owned\x07 \u202e\r\n\t\x9b31m"}'
    assert topic_reader.row(arrived(key=b"\x1b[2J"))[2] == r"\x1b[2J"
    hostile = (("event_type", b"\x1b[31mred"), ("id", b"\xff\x00"))
    assert topic_reader.row(arrived(headers=hostile))[3:5] == (r"\x1b[31mred", r"\xff\x00")


def test_row_shows_bytes_that_are_no_text_as_hex() -> None:
    assert topic_reader.row(arrived(b"\x00\xff"))[5] == "0x00ff"


def test_row_keeps_letters_of_every_script() -> None:
    assert topic_reader.row(arrived('"Zoë 東京 🎉"'.encode()))[5] == '"Zoë 東京 🎉"'


def test_document_holds_all_there_is() -> None:
    assert topic_reader.document(arrived()) == {
        "topic": "outbox.event.order",
        "partition": 3,
        "offset": 17,
        "written_at": "2026-11-29T12:00:00.005000+00:00",
        "key": "42",
        "id": ID.decode(),
        "event_type": "OrderPlaced",
        "event_version": "1",
        "occurred_at": "2026-11-29T11:59:59.999000Z",
        "traceparent": None,
        "correlation_id": "c-1",
        "causation_id": None,
        "headers": {"tenant": "acme"},
        "payload": {"total": 99},
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (b"null", None),
        (b"not json", "not json"),
        (b"\xff", {"hex": "ff"}),
        (b"[" * 100_000, "[" * 100_000),
        (b"", ""),
    ],
)
def test_document_of_any_payload_is_json(value: bytes | None, shown: object) -> None:
    document = topic_reader.document(arrived(value))
    assert document["payload"] == shown
    json.dumps(document)


@pytest.mark.parametrize(
    ("template", "topic", "matches"),
    [
        ("outbox.event.{aggregate_type}", "outbox.event.order", True),
        ("outbox.event.{aggregate_type}", "outbox.event.order.line", True),
        ("outbox.event.{aggregate_type}", "outboxXevent.order", False),
        ("outbox.event.{aggregate_type}", "outbox.event.", False),
        ("outbox.event.{aggregate_type}", "a.outbox.event.order", False),
        ("{aggregate_type}-v1", "order-v1", True),
        ("{aggregate_type}-v1", "order-v2", False),
    ],
)
def test_topic_pattern_matches_what_the_template_makes(template: str, topic: str, matches: bool) -> None:
    assert bool(topic_reader.topic_pattern(template).fullmatch(topic)) is matches


@pytest.mark.parametrize("milliseconds", [2**62, -(2**62)])
def test_a_time_that_no_calendar_has_is_no_time(milliseconds: int) -> None:
    assert topic_reader._moment(milliseconds) is None


def test_unreadable_headers_have_a_note() -> None:
    strange = replace(arrived(headers=()), unreadable_headers=True)
    assert topic_reader.document(strange)["note"] == "headers unreadable: a name is not UTF-8"
    assert "(headers unreadable: a name is not UTF-8)" in topic_reader.row(strange)
    assert "note" not in topic_reader.document(arrived())


@pytest.mark.parametrize("value", [b'"\\ud800"', b'{"\\udfff": 1}', b"NaN", '"é"'.encode()])
def test_a_line_can_always_be_written(value: bytes) -> None:
    line = topic_reader.document_line(arrived(value))
    assert line.encode()
    json.loads(line, parse_constant=pytest.fail)
