"""The tool that writes what Kafka's clients refuse to write, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from fix_consumer import Bench
from outbox_connectors.record_headers import read_headers
from raw_records import NOT_UTF8, RawRecord, write_raw
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.stack


def read(bench: Bench, partition: int, offset: int) -> Iterator[Message]:
    settings = {"bootstrap.servers": bench.server.kafka, "group.id": f"{bench.topic}.reader"}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(bench.topic, partition, offset)])
        while True:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.error() is None
            yield message


def test_a_record_is_written_byte_for_byte(bench: Bench) -> None:
    record = RawRecord(b"\0value", b"k\xff", [(b"id", b"1"), (b"id", None), (b"", b"")], 1_700_000_000_123)
    bare = RawRecord()
    assert write_raw(bench.server.kafka, bench.topic, [record, bare], partition=2) == 0
    assert write_raw(bench.server.kafka, bench.topic, [bare], partition=2) == 2
    messages = read(bench, 2, 0)
    found = next(messages)
    assert (found.value(), found.key(), found.timestamp()) == (b"\0value", b"k\xff", (1, 1_700_000_000_123))
    assert read_headers(found) == [("id", b"1"), ("id", None), ("", b"")]
    found = next(messages)
    assert (found.value(), found.key(), read_headers(found), found.offset()) == (None, None, [], 1)


def test_header_names_that_are_not_utf_8_are_found_among_many_records(bench: Bench) -> None:
    """A call that is made often is made without the check that turns the client's failure into an error."""
    good = RawRecord(b"{}", b"k", [(b"id", b"1")])
    bad = RawRecord(b"{}", b"k", [(b"id", b"1"), (NOT_UTF8, b"x")])
    write_raw(bench.server.kafka, bench.topic, [*[good] * 100, bad, good, bad])
    messages = read(bench, 0, 0)
    for number in range(103):
        found = next(messages)
        expected = None if number in (100, 102) else [("id", b"1")]
        assert [read_headers(found) for _ in range(3)] == [expected] * 3
        assert (found.value(), found.key()) == (b"{}", b"k")


def test_a_topic_that_is_not_there_is_named(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match=r"error code 3$"):
        write_raw(bench.server.kafka, f"{bench.topic}.missing", [RawRecord(b"{}")])
