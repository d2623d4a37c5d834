"""A backlog of 100,000 committed events: how fast each connector brings it to Kafka."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.connector_configs import DEFAULTS, OURS, TUNED
from benchmarks.measures import Figure
from benchmarks.roads import AGGREGATE_TYPE, Roads, wait_until
from benchmarks.rounds import Say, rotated
from outbox_pipeline import outbox

EVENTS_PER_TRANSACTION = 100
SAMPLE_SECONDS = 0.05
WORK = "delivery of a backlog"
WAYS = (DEFAULTS, TUNED, OURS)


def measure(roads: Roads, bootstrap: str, rounds: int, events: int, say: Say) -> list[Figure]:
    """Write the backlog while no connector runs, then let one after the other deliver all of it.

    One round more is run than counted: the first compiles the worker's code paths.
    """
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        say(f"backlog, round {number} of {rounds}: {events:,} events" + (" (warm-up)" if number == 0 else ""))
        _write(roads.conn, events)
        for way in rotated(WAYS, number):
            rate = _drain(roads, way, bootstrap, events)
            if number > 0:
                rates[way].append(rate)
    return [
        Figure(WORK, way, tuple(rates[way]), "events/s", more_is_better=True, reference=way == TUNED)
        for way in WAYS
    ]


def _write(conn: psycopg.Connection[Any], events: int) -> None:
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


def _drain(roads: Roads, way: str, bootstrap: str, events: int) -> float:
    """Give events per second from the first one seen in the topic to the last.

    Counts by the partitions' end offsets: a consumer of everything would compete for the same cores.
    """
    asking = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    road = roads.by_way[way]
    before = _end(asking, road.topic, roads.partitions)
    seen: list[tuple[float, int]] = []

    def all_there() -> bool:
        seen.append((time.perf_counter(), _end(asking, road.topic, roads.partitions) - before))
        return seen[-1][1] >= events

    with roads.driving(way):
        wait_until(all_there, f"the backlog is not through {way}", every=SAMPLE_SECONDS)
    asking.close()
    first = next((at, count) for at, count in seen if count > 0)
    last = seen[-1]
    return (last[1] - first[1]) / (last[0] - first[0])


def _end(asking: Consumer, topic: str, partitions: int) -> int:
    ends = (asking.get_watermark_offsets(TopicPartition(topic, number), 5) for number in range(partitions))
    return sum(end[1] for end in ends if end is not None)
