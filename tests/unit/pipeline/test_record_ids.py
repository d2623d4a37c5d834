"""The id of an event is found by name, in whatever form and place a connector has written it."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from outbox_connectors.record_headers import Headers
from outbox_pipeline.ids.record_id import HeaderNames, occurred_before, packed_id

ONE = UUID("0197a0aa-0000-7000-8000-00000000000f")
OTHER = UUID("0197a0aa-0000-7000-8000-0000000000ee")
TEXT = str(ONE).encode()
ENVELOPE = json.dumps({"schema": {"type": "string", "name": "io.debezium.data.Uuid"}, "payload": str(ONE)})
NAMES = HeaderNames(("id", "event_id"), ("occurred_at", "when"))


@pytest.mark.parametrize(
    "headers",
    [
        [("id", TEXT)],
        [("__debezium.context.taskId", b"0"), ("event_type", b"X"), ("id", TEXT)],
        [("id", TEXT.upper())],
        [("id", ONE.hex.encode())],
        [("id", b'"' + TEXT + b'"')],
        [("id", ENVELOPE.encode())],
        [("id", b" " + TEXT)],
        [("id", b"{" + TEXT + b"}")],
        [("id", b"urn:uuid:" + TEXT)],
        [("event_type", b"X"), ("event_id", TEXT)],
        [("event_id", str(OTHER).encode()), ("id", TEXT)],
        [("id", b"no uuid"), ("event_id", TEXT)],
        [("id", b"42"), ("id", TEXT)],
    ],
)
def test_found(headers: Headers) -> None:
    assert packed_id(headers, NAMES) == ONE.bytes


@pytest.mark.parametrize(
    "value",
    [None, b"", b"null", b'"', b"{", b'{"payload": 7}', b"\xff\xfe", b"[" * 9000, b'{"a":' * 9000, TEXT[1:]],
)
def test_none_and_no_error(value: bytes | None) -> None:
    assert packed_id([("id", value)], NAMES) is None
    assert packed_id([], NAMES) is None
    assert not occurred_before([("occurred_at", value)], NAMES, b"2026")


def test_older_only_where_a_header_says_so() -> None:
    since = b"2026-01-02T00:00:00.000000Z"
    old, new = b"2026-01-01T00:00:00.000000Z", b"2026-01-03T00:00:00.000000Z"
    assert occurred_before([("x", b""), ("occurred_at", old)], NAMES, since)
    assert occurred_before([("when", b'"' + old + b'"')], NAMES, since)
    assert not occurred_before([("occurred_at", new)], NAMES, since)
    assert not occurred_before([("occurred_at", b"1767225600000000")], NAMES, since)
    assert not occurred_before([("event_type", old)], NAMES, since)
