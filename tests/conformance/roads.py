"""A whole road for one test: database, outbox, publication, slot, connector, topics, and a reader."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from confluent_kafka import Consumer, Message, TopicPartition
from psycopg.rows import TupleRow

from asking import administrator
from fix_stack import Database, Stack
from outbox_connectors.definition import Definition, Secret
from outbox_connectors.loading import loads
from outbox_connectors.record import Record
from outbox_pipeline import provision
from outbox_pipeline.connect import canary
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.servers import postgres
from waiting import PATIENCE_SECONDS

TEMPLATE = """\
pipeline: {name}
postgres:
  connector:
    host: {host}
    port: {port}
    database: {database}
    user: conformance_cdc
    password: ${{env:OUTBOX_CDC_PASSWORD}}
    role_password: ${{OUTBOX_CDC_PASSWORD}}
    sslmode: disable
kafka:
  client: {{bootstrap.servers: "{kafka}"}}
  topic: events.{name}.{{aggregate_type}}
connect:
  url: {connect}
"""


def definition(stack: Stack, database: Database, name: str, extra: str) -> Definition:
    """Define a pipeline on a test database; `extra` goes on in the section `connect`."""
    environ = stack.environ
    text = TEMPLATE.format(
        name=name,
        host=environ["OUTBOX_CDC_HOST"],
        port=environ["OUTBOX_CDC_PORT"],
        database=database.name,
        kafka=stack.kafka,
        connect=stack.connect_url,
    )
    return loads(text + extra, source=name, environ=environ)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A record as it was read, with what is not part of the contract's `Record`."""

    record: Record
    partition: int
    offset: int


@dataclass(slots=True)
class Road:
    """A pipeline that has delivered a canary."""

    definition: Definition
    conn: psycopg.Connection[TupleRow]
    client: ConnectClient
    topics: set[str] = field(default_factory=set)

    def read(self, count: int) -> Sequence[Arrived]:
        """Read all event topics from the start until `count` records have come, in order per partition."""
        settings = {
            **self.definition.kafka.client,
            "group.id": f"{self.definition.pipeline}-reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
        }
        consumer = Consumer(settings)
        arrived: list[Arrived] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while len(arrived) < count:
                self._assign(consumer)
                arrived += [_arrived(message) for message in consumer.consume(1000, 0.5)]
                self._check(deadline, len(arrived), count)
        finally:
            consumer.close()
        return arrived

    def _assign(self, consumer: Consumer) -> None:
        """Take every partition of every topic of this pipeline, also of those that have just been made."""
        ours = {tp.topic for tp in consumer.assignment()}
        prefix = self.definition.kafka.topic_of("")
        found = consumer.list_topics(timeout=10).topics
        new = [name for name in found if name.startswith(prefix) and name not in ours]
        partitions = [TopicPartition(name, at, 0) for name in new for at in found[name].partitions]
        if partitions:
            consumer.incremental_assign(partitions)
            self.topics |= set(new)

    def _check(self, deadline: float, have: int, want: int) -> None:
        status = self.client.status(self.definition.connect.connector)
        assert status is not None
        assert not status.failed, status.trace_line
        assert time.monotonic() < deadline, f"{have} of {want} records arrived"


def _arrived(message: Message) -> Arrived:
    assert message.error() is None, message.error()
    topic, partition, offset, key = message.topic(), message.partition(), message.offset(), message.key()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    assert isinstance(key, bytes)
    headers = tuple((str(header[0]), _raw(header[1])) for header in message.headers() or ())
    return Arrived(Record(topic, key, _raw(message.value()), headers), partition, offset)


def _raw(value: str | bytes | None) -> bytes | None:
    assert value is None or isinstance(value, bytes)
    return value


@contextmanager
def road(stack: Stack, database: Database, name: str, extra: str = "") -> Iterator[Road]:
    """Provision a pipeline, prove that it works, and take connector and topics away at the end."""
    found = definition(stack, database, name, extra)
    conn = postgres.connect(Secret(database.conninfo), application_name=name)
    with conn, ConnectClient(found.connect) as client:
        made = Road(found, conn, client, {found.message_topic})
        try:
            provision.apply(conn, client, found, say=print)
            canary.travel(conn, found, timeout_seconds=PATIENCE_SECONDS)
            yield made
        finally:
            client.delete(found.connect.connector)
            _forget(found.kafka.client, made.topics)


def _forget(client: Mapping[str, str], topics: set[str]) -> None:
    admin = administrator(client)
    for future in admin.delete_topics(sorted(topics), operation_timeout=10).values():
        future.exception(timeout=15)
