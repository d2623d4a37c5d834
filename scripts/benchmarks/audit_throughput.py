"""Throughput and memory of an audit, run in a process of its own.

Called by `measure` as `python -m benchmarks.audit_throughput`, with the definition on standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.figures import Figure, Goal
from benchmarks.rounds import Log
from benchmarks.servers import Servers
from outbox_connectors.definition import Definition
from outbox_connectors.loading import loads
from outbox_pipeline.operations import audit
from outbox_pipeline.provision import tables
from outbox_pipeline.servers import postgres

SPEED, MEMORY = "audit: outbox and topic", "audit: memory"
VARIANT = "rows and records"
TOPIC = "bench.audit.order"
GOALS = (
    Goal(SPEED, VARIANT, at_least=200_000, absolute=True),
    Goal(MEMORY, VARIANT, at_most=300, absolute=True),
)
DEFINITION = """\
pipeline: bench_audit
postgres:
  admin: "{dsn}"
  connector: {{host: localhost, database: shop, user: bench, password: "${{env:NONE}}"}}
kafka:
  client: {{bootstrap.servers: "{bootstrap}"}}
  topic: bench.audit.{{aggregate_type}}
connect:
  url: http://localhost:1
"""
FILL = """
INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at)
SELECT gen_random_uuid(), 'order', 'k' || mod(n, 1000), 'OrderPlaced', 1, '{"total": 42}', now()
FROM generate_series(1, %s) AS n
"""


def wanted_events(by_size: int) -> int:
    """Give the number of events to audit: OUTBOX_AUDIT_EVENTS if it is set, else that of the size."""
    return int(os.environ.get("OUTBOX_AUDIT_EVENTS") or by_size)


def measure(servers: Servers, rounds: int, events: int, log: Log) -> list[Figure]:
    """Fill an outbox and a topic with the same events and audit them."""
    text = DEFINITION.format(dsn=servers.dsn("shop"), bootstrap=servers.bootstrap)
    definition = loads(text, source="bench", environ=os.environ)
    with psycopg.connect(servers.dsn("shop"), autocommit=True) as conn:
        log(f"audit: {events:,} events")
        _fill(conn, definition, events)
        speeds, sizes = [], []
        for number in range(rounds):
            log(f"audit, round {number + 1} of {rounds}")
            speed, size = _audited(text, events)
            speeds.append(speed)
            sizes.append(size)
        conn.execute("DROP TABLE outbox CASCADE")
    return [
        Figure(SPEED, VARIANT, tuple(speeds), "ids/s", more_is_better=True),
        Figure(MEMORY, VARIANT, tuple(sizes), "MB", more_is_better=False),
    ]


def _fill(conn: psycopg.Connection[Any], definition: Definition, events: int) -> None:
    conn.execute("DROP TABLE IF EXISTS outbox CASCADE")
    for statement in tables.ddl(definition.outbox, datetime.now(UTC).date()):
        conn.execute(statement)
    conn.execute(FILL, (events,))
    admin = AdminClient(dict(definition.kafka.client))
    for future in admin.create_topics([NewTopic(TOPIC, 6, 1)]).values():
        future.result()
    producer = Producer({**definition.kafka.client, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
    rest: list[tuple[str, str | bytes | None]] = [
        ("event_type", b"OrderPlaced"),
        ("event_version", b"1"),
        ("occurred_at", b"2026-11-30T12:00:00.000000Z"),
        ("traceparent", None),
        ("correlation_id", None),
        ("causation_id", None),
        ("headers", None),
    ]
    for number, one in enumerate(_ids(conn)):
        headers = [("id", str(one).encode()), *rest]
        while True:
            try:
                producer.produce(TOPIC, b'{"total": 42}', f"k{number % 1000}".encode(), headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _ids(conn: psycopg.Connection[Any]) -> Iterator[UUID]:
    with conn.transaction(), conn.cursor("ids", binary=True) as cursor:
        cursor.itersize = 20_000
        cursor.execute("SELECT id FROM outbox")
        for (one,) in cursor:
            yield one


def _audited(text: str, events: int) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.audit_throughput"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": sys.path[0]},
    )
    found = json.loads(done.stdout)
    assert found["written"] == found["delivered"] == events, done.stdout
    assert found["missing_count"] == 0, done.stdout
    return 2 * events / found["seconds"], found["megabytes"]


def _peak_kilobytes() -> int:
    """Read this process's peak memory; getrusage would also count the parent before the fork."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def main() -> None:
    """Audit once; print the result, the seconds and the peak memory as JSON."""
    definition = loads(sys.stdin.read(), source="bench", environ=os.environ)
    began = time.perf_counter()
    with postgres.connect(definition.postgres.admin, application_name="bench") as conn:
        result = audit.audit(conn, definition)
    seconds = time.perf_counter() - began
    megabytes = _peak_kilobytes() / 1024
    print(json.dumps({**result.document(), "seconds": seconds, "megabytes": megabytes}))


if __name__ == "__main__":
    main()
