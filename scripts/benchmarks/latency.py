"""Commit to consumer at 200 events/s: from the return of COMMIT to the record in a consumer's hands."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.connector_configs import DEFAULTS, OURS, TUNED
from benchmarks.loops import event_id
from benchmarks.measures import Figure, percentile
from benchmarks.roads import AGGREGATE_TYPE, Roads, wait_until
from benchmarks.rounds import Say, rotated
from outbox_pipeline import outbox

RATE = 200
WARM_UP_SECONDS = 2.0
WAYS = (DEFAULTS, TUNED, OURS)


def work(percent: int) -> str:
    """Name the line of a percentile."""
    return f"commit to consumer at {RATE}/s, p{percent}"


class Listener:
    """A consumer that notes when each event arrives, from the end of a topic on, in its own thread."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.arrived: dict[str, int] = {}  # id -> perf_counter_ns
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
        )
        self._consumer.assign([self._end(TopicPartition(topic, number)) for number in range(partitions)])
        self._thread = threading.Thread(target=self._listen, name=f"listener of {topic}")

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _end(self, partition: TopicPartition) -> TopicPartition:
        # Asked for here: the client would look up OFFSET_END later, behind events that are on their way.
        ends = self._consumer.get_watermark_offsets(partition, 10)
        assert ends is not None
        return TopicPartition(partition.topic, partition.partition, ends[1])

    def _listen(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            now = time.perf_counter_ns()
            if message is None or message.error() is not None:
                continue
            self.arrived.setdefault(event_id(message), now)


def measure(roads: Roads, bootstrap: str, rounds: int, seconds: float, say: Say) -> list[Figure]:
    """Run the ways in turns. Gives p50 and p99 of each, in milliseconds, round by round."""
    latencies: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in rotated(WAYS, number):
            say(f"latency, round {number + 1} of {rounds}: {way}")
            latencies[way].append(_round(roads, way, bootstrap, seconds))
    return [
        Figure(
            work(percent),
            way,
            tuple(percentile(values, percent) for values in latencies[way]),
            "ms",
            more_is_better=False,
            reference=way == DEFAULTS,
        )
        for percent in (50, 99)
        for way in WAYS
    ]


def _round(roads: Roads, way: str, bootstrap: str, seconds: float) -> list[float]:
    partitions = roads.partitions
    with Listener(bootstrap, roads.by_way[way].topic, partitions) as listener, roads.driving(way):
        first = _commit(roads.conn)
        wait_until(lambda: first in listener.arrived, f"no event through {way}")
        _load(roads.conn, WARM_UP_SECONDS)
        committed = _load(roads.conn, seconds)
        wait_until(lambda: committed.keys() <= listener.arrived.keys(), f"events missing through {way}")
    return [(listener.arrived[event] - at) / 1e6 for event, at in committed.items()]


def _load(conn: psycopg.Connection[Any], seconds: float) -> dict[str, int]:
    """Commit one event per transaction at RATE, on a fixed schedule. Gives id -> when COMMIT returned."""
    committed: dict[str, int] = {}
    started = time.perf_counter()
    for number in range(int(seconds * RATE)):
        time.sleep(max(started + number / RATE - time.perf_counter(), 0))
        committed[_commit(conn, number)] = time.perf_counter_ns()
    return committed


def _commit(conn: psycopg.Connection[Any], number: int = 0) -> str:
    with conn.transaction():
        event = outbox.add(
            conn,
            aggregate_type=AGGREGATE_TYPE,
            aggregate_id=f"order-{number % 500}",
            event_type="OrderPlaced",
            payload={"order": number, "total": "19.90", "lines": [{"sku": "A-1", "count": 2}] * 4},
        )
    return str(event)
