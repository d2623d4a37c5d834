"""Measure one consumer in a process of its own; prints events per second.

Called by `consumers` as `python -m benchmarks.consumer_process VARIANT NAME TOPIC EVENTS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import psycopg
from confluent_kafka import Consumer as KafkaConsumer

from benchmarks import plain_loops
from benchmarks.meter import Meter
from benchmarks.plain_loops import BULK, BULK_PLAIN, ONE_BY_ONE, SINGLE_CURSOR, SINGLE_PLAIN
from outbox_consumers import Consumer, Event

LOOPS = {
    BULK_PLAIN: plain_loops.without_dedup,
    SINGLE_PLAIN: plain_loops.pipelined_without_dedup,
    ONE_BY_ONE: plain_loops.transaction_per_message,
}


def main(argv: Sequence[str]) -> None:
    """Consume EVENTS events with the given VARIANT."""
    variant, name, topic, events = argv
    meter = Meter(int(events))
    bootstrap, dsn = os.environ["OUTBOX_KAFKA_BOOTSTRAP"], os.environ["BENCH_DSN"]
    if variant in LOOPS:
        consumer = KafkaConsumer({"bootstrap.servers": bootstrap, "group.id": name, **plain_loops.SETTINGS})
        consumer.subscribe([topic])
        with psycopg.connect(dsn, autocommit=True) as conn:
            LOOPS[variant](consumer, conn, meter)
        consumer.close()
    else:
        library(variant, name, topic, bootstrap, dsn, meter)
    print(meter.rate)


def library(variant: str, name: str, topic: str, bootstrap: str, dsn: str, meter: Meter) -> None:
    """Consume with outbox_consumers until the meter is full."""
    app = Consumer(name, kafka={"bootstrap.servers": bootstrap}, dsn=dsn, topics=[topic])

    def count(events: int) -> None:
        meter.count(events)
        if meter.done:
            app.stop()

    def bulk(conn: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        payloads = [plain_loops.text(event.payload) for event in events]
        conn.execute(plain_loops.BULK_EFFECT, ([event.key for event in events], payloads))
        count(len(events))

    def single(conn: psycopg.Connection[Any], event: Event) -> None:
        conn.execute(plain_loops.EFFECT, (event.key, plain_loops.text(event.payload)))
        count(1)

    def single_with_cursor(cursor: psycopg.Cursor[Any], event: Event) -> None:
        cursor.execute(plain_loops.EFFECT, (event.key, plain_loops.text(event.payload)))
        count(1)

    if variant == BULK:
        app.batch_handler("OrderPlaced")(bulk)
    elif variant == SINGLE_CURSOR:
        app.handler("OrderPlaced", cursor=True)(single_with_cursor)
    else:
        app.handler("OrderPlaced")(single)
    app.run()


if __name__ == "__main__":
    main(sys.argv[1:])
