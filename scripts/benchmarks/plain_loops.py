"""The hand-written loops that the consumer library is compared with.

`without_dedup` and `pipelined_without_dedup` are the library's loops without the inbox: fetch, filter by
event type, one transaction, store the offsets; event ids are not recorded. `transaction_per_message` is
what most articles about the inbox show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.meter import Meter

BULK_PLAIN, BULK = "a batch, no dedup", "batch handler with inbox"
SINGLE_PLAIN, SINGLE = "a pipeline, no dedup", "handler with inbox"
SINGLE_CURSOR = "the same with cursor=True"
ONE_BY_ONE = "inbox, a transaction per message"

BATCH = 1000
EVENT_TYPE = b"OrderPlaced"
SETTINGS = {
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "cooperative-sticky",
    "queued.min.messages": 10 * BATCH,
    "queued.max.messages.kbytes": 16384,
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 100,
}

BULK_EFFECT = "INSERT INTO effect (key, payload) SELECT * FROM unnest(%b::text[], %b::text[])"
EFFECT = "INSERT INTO effect (key, payload) VALUES (%s, %s)"
RECORD_ID = "INSERT INTO by_hand (consumer, event_id) VALUES ('bench', %s) ON CONFLICT DO NOTHING"


def without_dedup(consumer: Consumer, conn: psycopg.Connection[Any], meter: Meter) -> None:
    """Write each batch with one statement."""

    def write(batch: list[Message]) -> None:
        keys = [text(message.key()) for message in batch]
        conn.execute(BULK_EFFECT, (keys, [text(message.value()) for message in batch]))

    _batches(consumer, conn, meter, write)


def pipelined_without_dedup(consumer: Consumer, conn: psycopg.Connection[Any], meter: Meter) -> None:
    """Write each event with a statement of its own, sent in a pipeline, a batch per transaction."""

    def write(batch: list[Message]) -> None:
        with conn.pipeline():
            for message in batch:
                conn.execute(EFFECT, (text(message.key()), text(message.value())))

    _batches(consumer, conn, meter, write)


def transaction_per_message(consumer: Consumer, conn: psycopg.Connection[Any], meter: Meter) -> None:
    """Record the id, write the row, commit, store the offset; then take the next message."""
    while not meter.done:
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            continue
        event = UUID(event_id(message))
        with conn.transaction():
            if conn.execute(RECORD_ID, (event,)).rowcount == 1:
                conn.execute(EFFECT, (text(message.key()), text(message.value())))
        consumer.store_offsets(message)
        meter.count(1)


def _batches(
    consumer: Consumer,
    conn: psycopg.Connection[Any],
    meter: Meter,
    write: Callable[[list[Message]], None],
) -> None:
    while not meter.done:
        first = consumer.poll(0.5)
        if first is None or first.error() is not None:
            continue
        batch = [first, *consumer.consume(BATCH - 1, 0)]
        with conn.transaction():
            write([message for message in batch if kind(message) == EVENT_TYPE])
        # The last message of each partition is the one with its highest offset.
        last = {message.partition(): message for message in batch}
        consumer.store_offsets(
            offsets=[
                TopicPartition(str(message.topic()), partition, offset(message) + 1)
                for partition, message in last.items()
                if partition is not None
            ]
        )
        meter.count(len(batch))


def text(content: Any) -> str:
    """Decode a key or a value."""
    return str(content, "utf-8")


def offset(message: Message) -> int:
    """Give the offset of a message that was received."""
    found = message.offset()
    assert found is not None
    return found


def event_id(message: Message) -> str:
    """Give the id of the event, which is in the header `id`."""
    return text(dict(message.headers() or [])["id"])


def kind(message: Message) -> Any:
    """Give the type of the event, which is always in the second header."""
    headers = message.headers()
    return headers[1][1] if isinstance(headers, list) else None
