"""How fast a consumer writes a row per record, with and without the inbox."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import psycopg
from confluent_kafka import KafkaException, Producer

from benchmarks.connectors import DEFINITION_FILE
from benchmarks.figures import Figure
from benchmarks.plain_loops import BULK, BULK_PLAIN, ONE_BY_ONE, SINGLE, SINGLE_CURSOR, SINGLE_PLAIN
from benchmarks.rounds import Log, rotated
from benchmarks.servers import Servers
from outbox_connectors import loading
from outbox_connectors.definition import TopicSpec
from outbox_connectors.errors import Failed
from outbox_connectors.event import record_of
from outbox_connectors.record import Record
from outbox_consumers.inbox import schema
from outbox_pipeline import outbox
from outbox_pipeline.servers import topics

PARTITIONS = 6
DATABASE = "billing"
BULK_TOPIC, SINGLE_TOPIC = "bench.consume.bulk", "bench.consume.single"
BULK_WORK, SINGLE_WORK = "one INSERT per batch", "one INSERT per event"
TEXTBOOK_WORK = "the same, against the textbook"
SLOW_SHARE = 5  # the textbook variant consumes a fifth of the events, since it is much slower
TIMEOUT_SECONDS = 120

_numbers = count()


def measure(servers: Servers, rounds: int, bulk_events: int, single_events: int, log: Log) -> list[Figure]:
    """Consume the same records with every variant in turn, each in its own process and group."""
    _prepare(servers)
    plan = (
        (BULK_TOPIC, bulk_events, (BULK_PLAIN, BULK)),
        (SINGLE_TOPIC, single_events, (SINGLE_PLAIN, SINGLE, SINGLE_CURSOR, ONE_BY_ONE)),
    )
    rates: dict[str, list[float]] = {}
    for topic, events, variants in plan:
        log(f"consumers: {events:,} records into {topic}")
        fill(servers, topic, events)
        for number in range(rounds):
            for variant in rotated(variants, number):
                log(f"consumers, round {number + 1} of {rounds}: {variant}")
                share = events // SLOW_SHARE if variant == ONE_BY_ONE else events
                rates.setdefault(variant, []).append(_run(servers, variant, topic, share))
    return [
        *_figures(BULK_WORK, rates, BULK_PLAIN, BULK),
        *_figures(SINGLE_WORK, rates, SINGLE_PLAIN, SINGLE, SINGLE_CURSOR),
        *_figures(TEXTBOOK_WORK, rates, ONE_BY_ONE, SINGLE),
    ]


def _figures(work: str, rates: dict[str, list[float]], reference: str, *variants: str) -> list[Figure]:
    return [
        Figure(
            work,
            variant,
            tuple(rates[variant]),
            "events/s",
            more_is_better=True,
            reference=variant == reference,
        )
        for variant in (reference, *variants)
    ]


def _prepare(servers: Servers) -> None:
    with psycopg.connect(servers.dsn(DATABASE), autocommit=True) as conn:
        conn.execute("CREATE TABLE effect (key text NOT NULL, payload text NOT NULL)")
        conn.execute("CREATE TABLE by_hand (consumer text, event_id uuid, PRIMARY KEY (consumer, event_id))")
        schema.apply(conn, schema.steps())


def _run(servers: Servers, variant: str, topic: str, events: int) -> float:
    with psycopg.connect(servers.dsn(DATABASE), autocommit=True) as conn:
        conn.execute("TRUNCATE effect, by_hand, inbox")
        conn.execute("CHECKPOINT")
    name = f"bench-{next(_numbers)}"
    command = [sys.executable, "-m", "benchmarks.consumer_process", variant, name, topic, str(events)]
    environ = {**os.environ, "BENCH_DSN": servers.dsn(DATABASE), "PYTHONPATH": sys.path[0]}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode != 0:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise Failed(f"{variant}: {last}")
    return float(done.stdout.split()[-1])


def fill(servers: Servers, topic: str, events: int) -> None:
    """Create a topic with so many distinct records, formatted as the connector writes them."""
    kafka = loading.load(DEFINITION_FILE, servers.environ).kafka
    topics.create(kafka, [TopicSpec(topic, PARTITIONS, 1, {})])
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": servers.bootstrap,
            "partitioner": "murmur2_random",
            "linger.ms": 50,
            "queue.buffering.max.messages": events + 1,
            "on_delivery": lambda error, _: failed.append(error) if error else None,
        }
    )
    for record in _records(topic, events):
        producer.produce(record.topic, record.value, record.key, headers=list(record.headers))
        producer.poll(0)
    if producer.flush(TIMEOUT_SECONDS) or failed:
        raise KafkaException(f"records not written to {topic}: {failed[:1]}")


def _records(topic: str, events: int) -> Iterator[Record]:
    for number in range(events):
        yield record_of(
            outbox.event(
                aggregate_type="order",
                aggregate_id=f"order-{number % 5000}",
                event_type="OrderPlaced",
                payload={"order": number, "total": "19.90", "lines": [{"sku": "A-1", "count": 2}] * 4},
            ),
            topic,
        )
