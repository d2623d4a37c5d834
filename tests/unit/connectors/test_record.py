"""Record: columns, headers, partition, timestamps, and the arithmetic behind the limits."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone

import pytest

from outbox_connectors import record
from outbox_connectors.record import (
    COLUMNS,
    HEADERS,
    WRITTEN,
    Event,
    EventFields,
    Place,
    Row,
    partition_of,
    row_record,
    time_text,
    wire_time,
)


def test_headers_stand_in_the_order_of_the_columns() -> None:
    assert HEADERS == (
        "id",
        "event_type",
        "event_version",
        "occurred_at",
        "traceparent",
        "correlation_id",
        "causation_id",
        "headers",
    )


def test_row_event_and_keyword_arguments_have_the_columns() -> None:
    written = [column.name for column in WRITTEN]
    assert list(Row._fields) == written
    assert {field.name for field in fields(Event)} == set(written)
    assert EventFields.__annotations__.keys() == set(written) - {"id", "occurred_at"}


def test_one_column_each_becomes_topic_key_and_value() -> None:
    places = [column.place for column in COLUMNS]
    assert [places.count(place) for place in (Place.TOPIC, Place.KEY, Place.VALUE)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        # The values that Kafka's own UtilsTest expects of its murmur2, as unsigned numbers.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, hashed: int) -> None:
    assert record.murmur2(key) == hashed % 2**32


def test_partition_is_within_the_topic() -> None:
    found = {partition_of(f"order-{n}".encode(), 6) for n in range(500)}
    assert found == set(range(6))
    assert partition_of(b"", 6) in range(6)


@pytest.mark.parametrize(
    ("printed", "wire"),
    [
        ("2026-11-29 10:34:56.789012+00", "2026-11-29T10:34:56.789012Z"),
        ("2026-11-29 12:00:00+00", "2026-11-29T12:00:00.000000Z"),
        ("2026-11-29 12:00:00.5+00", "2026-11-29T12:00:00.500000Z"),
        ("10000-01-01 00:00:00+00", "+10000-01-01T00:00:00.000000Z"),
        ("0044-03-15 00:00:00+00 BC", "-0043-03-15T00:00:00.000000Z"),
        ("0001-01-01 00:00:00+00 BC", "0000-01-01T00:00:00.000000Z"),
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
    ],
)
def test_a_printed_timestamp_becomes_the_header(printed: str, wire: str) -> None:
    assert wire_time(printed) == wire


@pytest.mark.parametrize("printed", ["2026-11-29 12:00:00+02", "29/11/2026 12:00:00 UTC", "", "now"])
def test_a_timestamp_of_another_zone_or_style_is_refused(printed: str) -> None:
    with pytest.raises(ValueError, match="not a timestamptz in UTC"):
        wire_time(printed)


def test_a_datetime_is_printed_in_utc() -> None:
    zone = timezone(timedelta(hours=2))
    assert time_text(datetime(2026, 11, 29, 12, 34, 56, 789012, zone)) == "2026-11-29T10:34:56.789012Z"
    assert time_text(datetime(44, 3, 15, tzinfo=UTC)) == "0044-03-15T00:00:00.000000Z"


def test_a_row_becomes_a_record_with_all_headers() -> None:
    row = Row("0190…", "order", "42", "OrderPlaced", "1", None, "infinity", None, "", None, None)
    made = row_record(row, "outbox.event.order")
    assert (made.topic, made.key, made.value) == ("outbox.event.order", b"42", None)
    assert tuple(name for name, _ in made.headers) == HEADERS
    assert dict(made.headers)["traceparent"] is None
    assert dict(made.headers)["correlation_id"] == b""


def test_payload_bytes_pass_untouched() -> None:
    row = Row("x", "order", "42", "T", "1", b"\xff\0", "infinity", None, None, None, None)
    assert row_record(row, "t").value == b"\xff\0"


def test_the_largest_row_fits_a_record() -> None:
    names = sum(len(name) for name in HEADERS)
    fixed = 36 + len(str(record.MIN_EVENT_VERSION)) + len("+294276-12-31T23:59:59.999999Z")
    texts = record.MAX_EVENT_TYPE + 3 * record.MAX_TRACE_TEXT + record.MAX_HEADERS_BYTES
    framing = 61 + 21 + 10 * len(HEADERS) + 20  # batch header, record header, varints: upper bounds
    largest = record.MAX_AGGREGATE_ID + record.MAX_PAYLOAD_BYTES + names + fixed + texts + framing
    assert largest < 1_048_576, "the producer's default max.request.size"
    assert record.MAX_AGGREGATE_TYPE + len("outbox.event.") <= record.MAX_TOPIC
