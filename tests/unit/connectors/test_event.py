"""What `validate` refuses, and how JSON is printed."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_connectors import record
from outbox_connectors.definition import Payload
from outbox_connectors.errors import EventError
from outbox_connectors.event import (
    Encoded,
    InvalidField,
    InvalidJson,
    InvalidText,
    TooLarge,
    UnsafeAggregateType,
    encode,
    jsonb_text,
    record_of,
    validate,
)
from outbox_connectors.record import Event, JsonText

GOOD = Event(
    id=uuid.UUID("0190a8a0-0000-7000-8000-000000000001"),
    aggregate_type="order",
    aggregate_id="42",
    event_type="OrderPlaced",
    payload={"total": 99, "name": "Ünïcödé"},
    occurred_at=datetime(2026, 11, 29, tzinfo=UTC),
    headers={"tenant": "acme"},
)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"id": "0190a8a0-0000-7000-8000-000000000001"}, InvalidField),
        ({"aggregate_type": ""}, UnsafeAggregateType),
        ({"aggregate_type": "."}, UnsafeAggregateType),
        ({"aggregate_type": ".."}, UnsafeAggregateType),
        ({"aggregate_type": "an order"}, UnsafeAggregateType),
        ({"aggregate_type": "order\n"}, UnsafeAggregateType),
        ({"aggregate_type": "größe"}, UnsafeAggregateType),
        ({"aggregate_type": "x" * (record.MAX_AGGREGATE_TYPE + 1)}, TooLarge),
        ({"aggregate_type": 7}, InvalidField),
        ({"aggregate_id": ""}, InvalidText),
        ({"aggregate_id": 42}, InvalidField),
        ({"aggregate_id": None}, InvalidField),
        ({"aggregate_id": "a\0b"}, InvalidText),
        ({"aggregate_id": "\ud800"}, InvalidText),
        ({"aggregate_id": "ü" * (record.MAX_AGGREGATE_ID // 2 + 1)}, TooLarge),
        ({"event_type": ""}, InvalidText),
        ({"event_type": "x" * (record.MAX_EVENT_TYPE + 1)}, TooLarge),
        ({"event_version": "1"}, InvalidField),
        ({"event_version": True}, InvalidField),
        ({"event_version": 2**31}, InvalidField),
        ({"occurred_at": datetime(2026, 11, 29)}, InvalidField),
        ({"occurred_at": "2026-11-29"}, InvalidField),
        ({"traceparent": "a\0"}, InvalidText),
        ({"correlation_id": 3}, InvalidField),
        ({"causation_id": "x" * (record.MAX_TRACE_TEXT + 1)}, TooLarge),
        ({"payload": float("nan")}, InvalidJson),
        ({"payload": {"a": [float("-inf")]}}, InvalidJson),
        ({"payload": {"a": "\0"}}, InvalidJson),
        ({"payload": {"\0": 1}}, InvalidJson),
        ({"payload": {"a": "\udfff"}}, InvalidText),
        ({"payload": {"a": {1, 2}}}, InvalidJson),
        ({"payload": {("a", "b"): 1}}, InvalidJson),
        ({"payload": GOOD}, InvalidJson),
        ({"payload": deep(200_000)}, InvalidJson),
        ({"payload": [deep(950), "x" * record.MAX_PAYLOAD_BYTES]}, EventError),
        ({"payload": [deep(950), "\0"]}, EventError),
        ({"payload": "x" * record.MAX_PAYLOAD_BYTES}, TooLarge),
        ({"payload": b"x" * (record.MAX_PAYLOAD_BYTES + 1)}, TooLarge),
        ({"headers": {"a": "x" * record.MAX_HEADERS_BYTES}}, TooLarge),
        ({"headers": {"a": float("inf")}}, InvalidJson),
    ],
)
def test_what_could_never_be_delivered_is_refused(change: dict[str, Any], error: type[EventError]) -> None:
    with pytest.raises(error) as caught:
        validate(replace(GOOD, **change))
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert next(iter(change)) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"payload": None},
        {"payload": b""},
        {"payload": ""},
        {"payload": False},
        {"payload": [1, 1.5, None, "x"]},
        {"payload": {"text": "\\u0000 is only text here"}},
        {"payload": "x" * (record.MAX_PAYLOAD_BYTES - 2)},
        {"payload": b"x" * record.MAX_PAYLOAD_BYTES},
        {"event_version": -1},
        {"traceparent": ""},
        {"aggregate_type": "a.b_C-9"},
    ],
)
def test_what_can_be_delivered_passes(change: dict[str, Any]) -> None:
    validate(replace(GOOD, **change))


def test_the_payload_must_be_of_the_columns_type() -> None:
    with pytest.raises(InvalidField, match="the outbox holds jsonb"):
        validate(replace(GOOD, payload=b"x"), Payload.JSONB)
    with pytest.raises(InvalidField, match="the outbox holds bytea"):
        validate(GOOD, Payload.BYTEA)
    validate(replace(GOOD, payload=None), Payload.BYTEA)


def test_numbers_that_jsonb_prints_at_length_count_at_length() -> None:
    # 1e300 takes 5 characters in JSON and 301 in jsonb: the text is short, the record would not be.
    numbers = [1e300] * 4000
    assert len(json.dumps(numbers)) < record.MAX_PAYLOAD_BYTES / 10
    with pytest.raises(TooLarge, match=r"payload has 1,212,000 bytes"):
        validate(replace(GOOD, payload=numbers))


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("NaN", InvalidJson),
        ('{"a": 1,}', InvalidJson),
        (r'"\u0000"', InvalidJson),
        (r'"\ud800"', InvalidText),
        ("1e131072", InvalidJson),
        ("1e-16384", InvalidJson),
        ("1e99999999999999999999", InvalidJson),
        ("[" * 200_000, InvalidJson),
        ("[" + "1e131071," * 8 + "1]", TooLarge),
    ],
)
def test_text_that_is_no_json_of_postgres_is_refused(written: str, error: type[EventError]) -> None:
    with pytest.raises(error):
        validate(replace(GOOD, payload=JsonText(written)))


@pytest.mark.parametrize(
    "written", ["12345678901234567890.123", "1.50", "1e400", "1e131071", "1e-16383", '{"a": [1e5]}']
)
def test_text_of_json_is_passed_on_to_the_last_digit(written: str) -> None:
    event = replace(GOOD, payload=JsonText(written), headers=JsonText('{"n": 0.10}'))
    assert encode(event) == Encoded(written, '{"n": 0.10}')
    record = record_of(event, "orders")
    assert record.value == jsonb_text(written).encode()
    assert dict(record.headers)["headers"] == b'{"n": 0.10}'


def test_json_keeps_its_characters() -> None:
    assert encode(GOOD).payload == '{"total": 99, "name": "Ünïcödé"}'


@pytest.mark.parametrize(
    ("given_text", "printed"),
    [
        (
            '{"b":1.0,"a":[1,2,{"z":null}],"b":2.50,"e":1e3}',
            '{"a": [1, 2, {"z": null}], "b": 2.50, "e": 1000}',
        ),
        ('{"bb":1,"a":2,"é":3,"c":4}', '{"a": 2, "c": 4, "bb": 1, "é": 3}'),
        (r'"\u00e9\n\u0001\/"', r'"é\n\u0001/"'),
        ("-0.0", "0.0"),
        ("1.5e-7", "0.00000015"),
        ("123456789012345678901234567890.1", "123456789012345678901234567890.1"),
        ("[]", "[]"),
        ("{}", "{}"),
        ("null", "null"),
        (' "text" ', '"text"'),
    ],
)
def test_jsonb_prints(given_text: str, printed: str) -> None:
    assert jsonb_text(given_text) == printed


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


def exact(text: str) -> Any:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


@given(json_values)
def test_printing_changes_no_value(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert exact(jsonb_text(text)) == exact(text)
    assert jsonb_text(jsonb_text(text)) == jsonb_text(text)


def test_an_event_becomes_a_record() -> None:
    made = record_of(GOOD, "outbox.event.order")
    assert made.key == b"42"
    assert made.value == '{"name": "Ünïcödé", "total": 99}'.encode()
    assert made.headers == (
        ("id", b"0190a8a0-0000-7000-8000-000000000001"),
        ("event_type", b"OrderPlaced"),
        ("event_version", b"1"),
        ("occurred_at", b"2026-11-29T00:00:00.000000Z"),
        ("traceparent", None),
        ("correlation_id", None),
        ("causation_id", None),
        ("headers", b'{"tenant": "acme"}'),
    )


def test_a_tombstone_has_all_its_headers() -> None:
    made = record_of(replace(GOOD, payload=None, headers=None), "t")
    assert made.value is None
    assert len(made.headers) == len(record.HEADERS)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_what_is_not_measured_exactly_is_not_underestimated(numbers: list[float]) -> None:
    text = json.dumps(numbers)
    assert len(jsonb_text(text)) <= len(text) + 350 * len(re.findall(r"\de[+-]", text))


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_the_limit_is_exact_where_numbers_grow(more: int, fits: bool) -> None:
    # ["1e-7", 0.0000001, "..."]: the text in quotes does not grow, the number does.
    room = record.MAX_PAYLOAD_BYTES - len('["1e-7", 0.0000001, ""]')
    event = replace(GOOD, payload=["1e-7", 1e-7, "x" * (room + more)])
    if fits:
        validate(event)
    else:
        with pytest.raises(TooLarge, match="payload has 1,000,001 bytes"):
            validate(event)
