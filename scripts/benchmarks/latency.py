"""Commit to consumer at 200 events/s: from the return of COMMIT to the arrival of the record."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.connector_configs import DEFAULTS, OURS, TUNED
from benchmarks.connectors import AGGREGATE_TYPE, BenchConnectors, wait_until
from benchmarks.figures import Figure, percentile
from benchmarks.plain_loops import event_id
from benchmarks.rounds import Log, rotated
from outbox_pipeline import outbox

RATE = 200
WARM_UP_SECONDS = 2.0
VARIANTS = (DEFAULTS, TUNED, OURS)


def work(percent: int) -> str:
    """Name the line of a percentile."""
    return f"commit to consumer at {RATE}/s, p{percent}"


class Listener:
    """A consumer thread that starts at the end of a topic and notes when each event arrives."""

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
        # Read now: the client would resolve OFFSET_END later, and skip events that arrive until then.
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


def measure(
    connectors: BenchConnectors, bootstrap: str, rounds: int, seconds: float, log: Log
) -> list[Figure]:
    """Run the variants in turn. Returns p50 and p99 of each in milliseconds, one value per round."""
    latencies: dict[str, list[list[float]]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds):
        for variant in rotated(VARIANTS, number):
            log(f"latency, round {number + 1} of {rounds}: {variant}")
            latencies[variant].append(_round(connectors, variant, bootstrap, seconds))
    return [
        Figure(
            work(percent),
            variant,
            tuple(percentile(values, percent) for values in latencies[variant]),
            "ms",
            more_is_better=False,
            reference=variant == DEFAULTS,
        )
        for percent in (50, 99)
        for variant in VARIANTS
    ]


def _round(connectors: BenchConnectors, variant: str, bootstrap: str, seconds: float) -> list[float]:
    partitions = connectors.partitions
    with (
        Listener(bootstrap, connectors.by_variant[variant].topic, partitions) as listener,
        connectors.running(variant),
    ):
        first = commit_event(connectors.conn)
        wait_until(lambda: first in listener.arrived, f"no event through {variant}")
        commit_at_rate(connectors.conn, WARM_UP_SECONDS)
        committed = commit_at_rate(connectors.conn, seconds)
        wait_until(lambda: committed.keys() <= listener.arrived.keys(), f"events missing through {variant}")
    return [(listener.arrived[event] - at) / 1e6 for event, at in committed.items()]


def commit_at_rate(conn: psycopg.Connection[Any], seconds: float) -> dict[str, int]:
    """Commit one event per transaction at RATE on a fixed schedule. Returns id -> when COMMIT returned."""
    committed: dict[str, int] = {}
    started = time.perf_counter()
    for number in range(int(seconds * RATE)):
        time.sleep(max(started + number / RATE - time.perf_counter(), 0))
        committed[commit_event(conn, number)] = time.perf_counter_ns()
    return committed


def commit_event(conn: psycopg.Connection[Any], number: int = 0) -> str:
    with conn.transaction():
        event = outbox.add(
            conn,
            aggregate_type=AGGREGATE_TYPE,
            aggregate_id=f"order-{number % 500}",
            event_type="OrderPlaced",
            payload={"order": number, "total": "19.90", "lines": [{"sku": "A-1", "count": 2}] * 4},
        )
    return str(event)
