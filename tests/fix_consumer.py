"""A bench for consumers: a topic of their own, a database of their own, and a producer.

broker    PostgreSQL and Kafka of the test stack, without Kafka Connect
bench     topic, database with inbox and effect table, and the verbs a test needs
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from uuid_utils.compat import uuid7

import fix_stack
from asking import administrator
from fix_stack import Database, Stack
from outbox_consumers import Consumer, Event, RetryStrategy
from outbox_consumers.inbox import schema
from waiting import PATIENCE_SECONDS

RecordHeaders: TypeAlias = list[tuple[str, str | bytes | None]]

QUICK = RetryStrategy(wait=0.05, exponential_wait=0)


@dataclass(slots=True)
class Bench:
    """One topic, one database, one consumer name; nothing of it is shared with another test."""

    server: Stack
    database: Database
    topic: str
    partitions: int
    producer: Producer
    sent: list[uuid.UUID] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return self.database.conninfo

    def app(self, name: str = "billing", **settings: Any) -> Consumer:
        own = {"group.id": f"{self.topic}.{name}", **settings.pop("kafka", {})}
        kafka = {"bootstrap.servers": self.server.kafka, **own}
        defaults: dict[str, Any] = {"dsn": self.dsn, "topics": [self.topic], "retry": QUICK}
        return Consumer(name, kafka=kafka, **(defaults | settings))

    def applying(self, name: str = "billing", **settings: Any) -> Consumer:
        """Make a consumer whose handler writes one row per event into the effect table."""
        app = self.app(name, **settings)

        @app.handler("Placed")
        def placed(conn: psycopg.Connection[Any], event: Event) -> None:
            write_effect(conn, event, name)

        return app

    def send(
        self,
        data: object,
        *,
        kind: str = "Placed",
        key: str = "k",
        id: uuid.UUID | None = None,
        partition: int | None = None,
        headers: RecordHeaders | None = None,
    ) -> uuid.UUID:
        """Queue one event; `flush` delivers."""
        event_id = id or uuid7()
        value = data if isinstance(data, bytes | None) else json.dumps(data).encode()
        own: RecordHeaders = [
            ("id", str(event_id).encode()),
            ("event_type", kind.encode()),
            ("event_version", b"1"),
        ]
        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        self.producer.produce(self.topic, value, key, headers=own if headers is None else headers, **where)
        self.sent.append(event_id)
        return event_id

    def send_many(self, count: int, *, keys: int = 20) -> None:
        """Send `count` events, spread over the partitions by key."""
        for number in range(count):
            self.send({"n": number}, key=str(number % keys))
        self.flush()

    def flush(self) -> None:
        assert self.producer.flush(PATIENCE_SECONDS) == 0

    @property
    def environ(self) -> dict[str, str]:
        """Say to the applications of tests where everything is."""
        return {"BENCH_KAFKA": self.server.kafka, "BENCH_TOPIC": self.topic, "BENCH_DSN": self.dsn}

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return conn.execute(statement.encode(), values or None).fetchall()

    def run(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(statement.encode())

    def effects(self, consumer: str = "billing") -> list[int]:
        """Read the effects' numbers in the order they were written."""
        return [n for (n,) in self.query("SELECT n FROM effect WHERE consumer = %s ORDER BY place", consumer)]

    def applied_once(self, consumer: str = "billing") -> None:
        """Prove by ids: every event sent has exactly one effect, and nothing else has one."""
        rows = self.query("SELECT event_id, count(*) FROM effect WHERE consumer = %s GROUP BY 1", consumer)
        applied = dict(rows)
        assert {i for i, times in applied.items() if times > 1} == set(), "applied twice"
        assert set(self.sent) - set(applied) == set(), "lost"
        assert set(applied) - set(self.sent) == set(), "applied without having been sent"

    def applied_in_order(self) -> None:
        """Prove that the effects of each key are in the order of their numbers."""
        rows = self.query("SELECT key, array_agg(n ORDER BY place) FROM effect GROUP BY key")
        assert all(numbers == sorted(numbers) for _, numbers in rows)


def write_effect(conn: psycopg.Connection[Any], event: Event, consumer: str = "billing") -> None:
    conn.execute(
        "INSERT INTO effect (event_id, consumer, key, n) VALUES (%s, %s, %s, %s)",
        (event.id, consumer, event.key, event.data["n"]),
    )


@contextmanager
def running(app: Consumer) -> Iterator[Consumer]:
    """Run a consumer in a thread while the block runs; what it raises comes out here."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield app
    finally:
        app.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "the consumer does not stop"
    if failure:
        raise failure[0]


@pytest.fixture(scope="session")
def broker(stack_name: str) -> Stack:
    """PostgreSQL and Kafka of the test stack, without Kafka Connect."""
    fix_stack.run(stack_name, "up", "postgres", "kafka")
    return fix_stack._stack(stack_name)


@pytest.fixture
def bench(broker: Stack, database: Database, pipeline_name: str) -> Bench:
    """A bench with a topic of three partitions."""
    return make_bench(broker, database, pipeline_name, partitions=3)


def create_topic(server: Stack, topic: str, partitions: int = 1) -> str:
    """Create a topic and give its name back."""
    admin = administrator({"bootstrap.servers": server.kafka})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_SECONDS)
    return topic


def make_bench(server: Stack, database: Database, topic: str, partitions: int) -> Bench:
    """Create a topic, an inbox and a table of effects."""
    create_topic(server, topic, partitions)
    with database.connect() as conn:
        schema.apply(conn, schema.steps())
        conn.execute(
            "CREATE TABLE effect (place bigint GENERATED ALWAYS AS IDENTITY, event_id uuid, consumer text,"
            " key text, n int)"
        )
    producer = Producer({"bootstrap.servers": server.kafka, "linger.ms": 2, "acks": "all", "log_level": 0})
    return Bench(server, database, topic, partitions, producer)
