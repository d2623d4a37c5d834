"""How fast each connector delivers a backlog of committed events to Kafka."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.connector_configs import DEFAULTS, OURS, TUNED
from benchmarks.connectors import AGGREGATE_TYPE, BenchConnectors, wait_until
from benchmarks.figures import Figure
from benchmarks.rounds import Log, rotated
from outbox_pipeline import outbox

EVENTS_PER_TRANSACTION = 100
SAMPLE_SECONDS = 0.05
WARM_UP_SHARE = 3
WORK = "delivery of a backlog"
VARIANTS = (DEFAULTS, TUNED, OURS)


def measure(connectors: BenchConnectors, bootstrap: str, rounds: int, events: int, log: Log) -> list[Figure]:
    """Write the backlog while no connector runs, then let each connector in turn deliver all of it.

    A shorter round 0 is not counted: in it the JVM compiles the code.
    """
    rates: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds + 1):
        amount = events if number else events // WARM_UP_SHARE
        log(f"backlog, round {number} of {rounds}: {amount:,} events" + ("" if number else " (warm-up)"))
        write_events(connectors.conn, amount)
        for variant in rotated(VARIANTS, number):
            rate = _delivery_rate(connectors, variant, bootstrap, amount)
            if number > 0:
                rates[variant].append(rate)
    return [
        Figure(
            WORK, variant, tuple(rates[variant]), "events/s", more_is_better=True, reference=variant == TUNED
        )
        for variant in VARIANTS
    ]


def write_events(conn: psycopg.Connection[Any], events: int) -> None:
    """Commit so many events, a hundred per transaction."""
    for start in range(0, events, EVENTS_PER_TRANSACTION):
        with conn.transaction():
            outbox.add_many(
                conn,
                [
                    outbox.event(
                        aggregate_type=AGGREGATE_TYPE,
                        aggregate_id=f"order-{number % 5000}",
                        event_type="OrderPlaced",
                        payload={"order": number, "lines": [{"sku": "A-1", "count": 2}] * 4},
                    )
                    for number in range(start, start + EVENTS_PER_TRANSACTION)
                ],
            )


def _delivery_rate(connectors: BenchConnectors, variant: str, bootstrap: str, events: int) -> float:
    """Measure events per second from the first one in the topic to the last.

    Reads end offsets only: a consumer of all records would compete for the same cores.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    connector = connectors.by_variant[variant]
    before = _end(consumer, connector.topic, connectors.partitions)
    seen: list[tuple[float, int]] = []

    def all_there() -> bool:
        seen.append((time.perf_counter(), _end(consumer, connector.topic, connectors.partitions) - before))
        return seen[-1][1] >= events

    with connectors.running(variant):
        wait_until(all_there, f"the backlog was not delivered by {variant}", every=SAMPLE_SECONDS)
    consumer.close()
    first = next((at, count) for at, count in seen if count > 0)
    last = seen[-1]
    return (last[1] - first[1]) / (last[0] - first[0])


def _end(consumer: Consumer, topic: str, partitions: int) -> int:
    ends = (consumer.get_watermark_offsets(TopicPartition(topic, number), 5) for number in range(partitions))
    return sum(end[1] for end in ends if end is not None)
