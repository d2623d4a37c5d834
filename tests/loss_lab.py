"""Roads to crash: a database, an outbox, a connector and a topic each, all on one Connect worker.

The interleavings of Debezium dbz#76 and dbz#1554 are made so that they always happen: the next row of
a long transaction is proven to lie where a short one's COMMIT record ends, and a row that the topic
refuses holds the stored offset at the row before it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from fix_stack import Database
from outbox_connectors import profile
from outbox_connectors.definition import Definition, TopicSpec
from outbox_connectors.loading import loads
from outbox_pipeline import outbox, provision
from outbox_pipeline.connect.client import ConnectClient, SourceOffset
from outbox_pipeline.servers import logical_messages, topics
from waiting import PATIENCE_SECONDS, until

SMALL_MESSAGES = {"max.message.bytes": "10000"}
ALL_MESSAGES = {"max.message.bytes": "1048588"}
REFUSED_BYTES = 40_000  # too large for such a topic, small enough to share a page of COPY

DEFINITION = """\
pipeline: {name}
postgres:
  connector:
    host: {PGHOST}
    port: {PGPORT}
    database: {database}
    user: {name}_cdc
    password: ${{env:OUTBOX_CDC_PASSWORD}}
    role_password: {OUTBOX_CDC_PASSWORD}
    sslmode: disable
outbox:
  writers: []
kafka:
  client: {{bootstrap.servers: "{OUTBOX_KAFKA_BOOTSTRAP}"}}
  topic: {name}.event.{{aggregate_type}}
  defaults: {{partitions: 1, replication_factor: 1}}
  aggregates: {{order: {{}}}}
connect:
  url: {OUTBOX_CONNECT_URL}
watch:
  ticker: 10s
"""


def definition_of(name: str, database: Database) -> Definition:
    """Define a pipeline on a test's own database."""
    text = DEFINITION.format(name=name, database=database.name, **database.server.environ)
    return loads(text, source=f"{name}.yaml", environ={})


@dataclass(slots=True)
class Road:
    """One pipeline. `conn` is the superuser's, in autocommit mode, in its database."""

    definition: Definition
    conn: psycopg.Connection
    written: list[UUID] = field(default_factory=list)  # committed, or in `open`
    open: psycopg.Connection | None = None  # a transaction that outlives the crash
    long: list[UUID] = field(default_factory=list)  # its events
    first_refused: int = 0  # number (from 1) of the first event that the topic refuses

    @property
    def topic(self) -> str:
        return self.definition.kafka.topic_of("order")

    @property
    def behind_refused(self) -> list[UUID]:
        """The events written after the first one that the topic refuses."""
        return self.written[self.first_refused :]

    @property
    def connector(self) -> str:
        return self.definition.connect.connector

    def add(self, conn: psycopg.Connection | None = None, *, refused: bool = False) -> UUID:
        """Write one event, on `conn` or in a transaction of its own; a refused one is too large."""
        payload = {"text": secrets.token_hex(REFUSED_BYTES // 2)} if refused else {"n": len(self.written)}
        values: dict[str, Any] = {"aggregate_type": "order", "aggregate_id": "1", "event_type": "OrderPlaced"}
        if conn is None:
            with self.conn.transaction():
                event = outbox.add(self.conn, payload=payload, **values)
        else:
            event = outbox.add(conn, payload=payload, **values)
        self.written.append(event)
        if refused and not self.first_refused:
            self.first_refused = len(self.written)
        return event

    def copy(self, rows: int, *, refused: int) -> None:
        """Write `rows` events with one COPY, of which number `refused` is too large for the topic."""
        events = [outbox.new_id() for _ in range(rows)]
        columns = "id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at"
        with self.conn.cursor() as cursor, cursor.copy(f"COPY outbox ({columns}) FROM STDIN") as copy:
            for number, event in enumerate(events, 1):
                size = REFUSED_BYTES // 2 if number == refused else 1
                payload = f'"{secrets.token_hex(size)}"'
                copy.write_row((event, "order", "1", "OrderPlaced", 1, payload, "2026-11-29 12:00:00+00"))
        self.first_refused = len(self.written) + refused
        self.written.extend(events)

    def tick(self) -> None:
        """Send what the ticker sends."""
        logical_messages.emit(self.conn, self.definition.heartbeat_prefix)

    def commit_open(self) -> None:
        """End the transaction that outlived the crash."""
        assert self.open is not None
        self.open.commit()
        self.open.close()
        self.open = None


def interleave(
    road: Road, conninfo: str, *, between: Callable[[], object] | None = None, refused: bool = False
) -> None:
    """Open a transaction with rows 1 to 10, in whose middle a short one commits.

    Row 6 begins in the log exactly where the short transaction's COMMIT record ends (or the record
    of `between`, which follows it); when a checkpoint or another process wrote in between, it is
    rolled back and made again. `refused` makes rows 1 to 5 too large for the topic.
    """
    for _ in range(20):
        long = psycopg.connect(conninfo)
        road.long = [road.add(long, refused=refused) for _ in range(5)]
        road.add()
        if between is not None:
            between()
        end = _value(road.conn, "SELECT pg_current_wal_insert_lsn()")
        road.long += [road.add(long) for _ in range(5)]
        road.conn.execute("INSERT INTO unpublished VALUES (1)")  # its commit flushes the log
        xid = _value(long, "SELECT pg_current_xact_id()::text::bigint")
        record = road.conn.execute(
            "SELECT xid::text::bigint, resource_manager FROM pg_get_wal_record_info(%s)", (end,)
        ).fetchone()
        if record == (xid, "Heap"):
            road.open = long
            return
        long.close()
        road.written = [event for event in road.written if event not in road.long]
        road.first_refused = 0
    raise AssertionError("row 6 never followed the COMMIT directly: something writes to this server")


def _value(conn: psycopg.Connection, query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


@dataclass(slots=True)
class Lab:
    """All roads and the worker they share."""

    client: ConnectClient
    roads: dict[str, Road] = field(default_factory=dict)

    def build(
        self, case: str, definition: Definition, conn: psycopg.Connection, overrides: Mapping[str, str]
    ) -> Road:
        """Provision one road and start its connector with the profile, `overrides` on top."""
        conn.execute("CREATE EXTENSION pg_walinspect")
        conn.execute("CREATE TABLE unpublished (n int)")
        provision.apply_postgres(conn, definition)
        road = Road(definition, conn)
        messages_topic = TopicSpec(definition.message_topic, 1, 1, {})
        topics.create(definition.kafka, [TopicSpec(road.topic, 1, 1, SMALL_MESSAGES), messages_topic])
        version = self.client.debezium_version()
        assert version is not None
        changed = replace(definition, connect=replace(definition.connect, config=overrides))
        config = profile.render(changed, debezium=version, postgres_major=conn.info.server_version // 10000)
        self.client.put_config(road.connector, config)
        self.roads[case] = road
        return road

    def stored(self, road: Road) -> SourceOffset | None:
        return self.client.offsets(road.connector)

    def wait_for_offset(self, road: Road, reached: Callable[[SourceOffset], bool]) -> SourceOffset:
        """Wait until Connect has stored an offset like this."""
        found = until(lambda: o if (o := self.stored(road)) is not None and reached(o) else None)
        assert found is not None, (
            f"{road.connector}: {self.stored(road)}, {self.client.status(road.connector)}"
        )
        return found

    def wait_for_failure(self, road: Road) -> None:
        """Wait until the task has met the row that the topic refuses."""
        assert until(lambda: (s := self.client.status(road.connector)) is not None and s.failed)


Seen = TypeVar("Seen")


def delivered(road: Road, last: UUID) -> list[UUID]:
    """Read every event of a road's topic, in order, up to the `last` one or the end of patience."""
    assert until(lambda: topics.inspect(road.definition.kafka, [road.topic])[road.topic]), "no topic"
    found: list[UUID] = []
    with _consumer(road) as consumer:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and last not in found:
            for record in consumer.consume(500, 0.1):
                assert record.error() is None
                found.append(_event_id(record))
    return found


def _event_id(record: Message) -> UUID:
    value = dict(record.headers() or [])["id"]
    assert isinstance(value, bytes)
    return UUID(value.decode())


@contextmanager
def _consumer(road: Road) -> Iterator[Consumer]:
    """Read the road's only partition from its start, without a group to wait for."""
    consumer = Consumer({**road.definition.kafka.client, "group.id": road.connector})
    try:
        consumer.assign([TopicPartition(road.topic, 0, OFFSET_BEGINNING)])
        yield consumer
    finally:
        consumer.close()
