"""Admission: may this relay publish this outbox now?

Asked before a relay starts, and again whenever a worker opens a session. The outbox has to be set up for
the relay, no connector may publish it, and no row that is already in a topic may be published again.
The last happens where the database is an older copy than Kafka has seen; the numbers of the batches
tell. A batch is noted in PostgreSQL before it is published, so Kafka can hold a greater number only
after a restore, after a failover that lost the end of the log, or when the relay was set up anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from threading import Event
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.connect import wire_guard
from outbox_pipeline.errors import AccessDenied, Failed, Refused, Unreachable
from outbox_pipeline.ids import publisher
from outbox_pipeline.provision import tables
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import RelayNames, relay_names
from outbox_pipeline.relay.session import RelaySession, read_settings
from outbox_pipeline.relay.settings import Mode, RelaySettings, progress_config
from outbox_pipeline.relay.wakeup import Waiter
from outbox_pipeline.servers import admin_rights, postgres, topics
from outbox_pipeline.servers.kafka import administrator, unreachable
from outbox_pipeline.servers.plan import ChangeKind, State

Connection = psycopg.Connection[TupleRow]

SWITCH_POLL_SECONDS: Final = 0.2  # between two attempts to enter while a switch keeps workers out
START_TIMEOUT_SECONDS: Final = 30.0  # for Kafka's answer when a relay starts
SESSION_TIMEOUT_SECONDS: Final = (
    5.0  # for Kafka's answer when a worker, which may be told to stop, reconnects
)
LAST_OFFSETS: Final = 40  # read from the end of a progress partition: some batches and their markers
_SET_UP: Final = "run outboxctl relay --init"


def check_start(conn: Connection, definition: Definition, settings: RelaySettings) -> int:
    """Refuse to start a relay that would lose or repeat events; return the number of shards.

    Raises Failed where something is missing; Refused where a connector reads the same outbox, where one
    has read it and its rows are still there, and where another pipeline relays it; and Unreachable.
    """
    wire_guard.refuse_other_form(definition, None)
    names = relay_names(definition)
    found = read_settings(conn, names)
    if found is None:
        raise Failed(f"outbox {definition.outbox.table} is not set up for a relay", remedy=_SET_UP)
    pipeline, shards = found
    _check_table(conn, definition)
    options = schema.SetUpOptions(shards, notify=False, archive=settings.mode is Mode.ARCHIVE)
    planned = schema.plan_objects(schema.read(conn, names), found, names, definition.outbox, options)
    if planned.why:
        error = Refused if pipeline != definition.pipeline else Failed
        raise error(planned.why, where=planned.name, remedy=planned.remedy)
    if planned.changes:
        what = ", ".join(change.field for change in planned.changes)
        archive = " --archive" if settings.mode is Mode.ARCHIVE else ""
        raise Failed(f"{what} is missing", where=planned.name, remedy=_SET_UP + archive)
    publisher.refuse_beside_connector(conn, definition)
    published: dict[int, int] = {}
    if settings.transactions:
        _check_progress_topic(definition, names, shards)
        published = last_published(definition, names, shards)
    admit(conn, definition, names, published)
    return shards


def open_session(
    definition: Definition, names: RelayNames, shards: int, *, transactions: bool, waiter: Waiter, stop: Event
) -> RelaySession | None:
    """Open a worker's session and show it among the workers; None when `stop` is set while a switch runs.

    Workers wait here as long as a switch keeps them out. The database may be another than before: one that
    was failed over and has not seen the last batches would publish their rows once more. Raises Refused
    then, and where the outbox was handed to the connector meanwhile; Unreachable, and psycopg errors.
    """
    published = (
        last_published(definition, names, shards, timeout_seconds=SESSION_TIMEOUT_SECONDS)
        if transactions
        else {}
    )
    session = RelaySession.open(definition, names, shards)
    try:
        while not session.try_enter():
            if stop.is_set():
                session.close()
                return None
            waiter.wait(SWITCH_POLL_SECONDS)
        publisher.check_still_relay(session.conn, definition)
        if shards_ahead(session.conn, names, published):
            # The proof reads all topics, which takes longer than a worker's session may be idle.
            with postgres.as_admin(definition, "outboxctl relay") as conn:
                admit(conn, definition, names, published)
    except BaseException:
        session.close()
        raise
    return session


def admit(conn: Connection, definition: Definition, names: RelayNames, published: Mapping[int, int]) -> None:
    """Let a relay begin, or raise Refused because it could publish rows a second time.

    Once it is proven that no row of an older copy is in a topic, the greater numbers are noted, and the
    next relay is not asked for proof. Raises Unreachable.
    """
    found = shards_ahead(conn, names, published)
    publisher.admit_relay(conn, definition, restored=bool(found))
    catch_up = sql.SQL(statements.get("relay_catch_up")).format(batch=names.qualified(names.batch))
    for shard, n in found.items():
        conn.execute(catch_up, {"shard": shard, "n": n})


def shards_ahead(conn: Connection, names: RelayNames, published: Mapping[int, int]) -> dict[int, int]:
    """Find the shards of which Kafka holds a batch with a greater number than PostgreSQL has noted.

    `published` must have been read before, by `last_published`: the noted numbers only grow.
    """
    query = sql.SQL(statements.get("relay_read_batches")).format(batch=names.qualified(names.batch))
    noted = {int(shard): int(n) for shard, n in conn.execute(query)}
    return {shard: n for shard, n in published.items() if n > noted.get(shard, 0)}


def last_published(
    definition: Definition, names: RelayNames, shards: int, *, timeout_seconds: float = START_TIMEOUT_SECONDS
) -> dict[int, int]:
    """Read the number of the last batch of each shard, from the end of its partition. Raises Unreachable."""
    servers = f"Kafka at {definition.kafka.client.get('bootstrap.servers', '')}"
    settings = {**progress_config(definition, names), "enable.partition.eof": True}
    consumer = Consumer(settings)
    try:
        tails = []
        for shard in range(shards):
            part = TopicPartition(names.progress_topic, shard)
            low, end = consumer.get_watermark_offsets(part, timeout=timeout_seconds)
            if low < end:
                tails.append(TopicPartition(names.progress_topic, shard, max(low, end - LAST_OFFSETS)))
        consumer.assign(tails)
        return _last_numbers(consumer, len(tails), servers, timeout_seconds)
    except KafkaException as error:
        raise unreachable(servers, [error.args[0]]) from error
    finally:
        consumer.close()


def _last_numbers(
    consumer: Consumer, partitions: int, servers: str, timeout_seconds: float
) -> dict[int, int]:
    found: dict[int, int] = {}
    ended: set[int | None] = set()
    deadline = time.monotonic() + timeout_seconds
    while len(ended) < partitions:
        if time.monotonic() > deadline:
            raise Unreachable("Kafka does not answer", where=servers)
        for message in consumer.consume(500, 0.2):
            error, shard = message.error(), message.partition()
            if error is None and shard is not None:
                found[shard] = _number(message.value(), found.get(shard, 0))
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                ended.add(shard)
    return found


def _number(value: Any, before: int) -> int:
    return int(value) if value and value.isdigit() and len(value) < 20 else before


def _check_table(conn: Connection, definition: Definition) -> None:
    outbox = definition.outbox
    ours = admin_rights.read(conn, outbox.table.schema)
    planned = tables.plan(tables.read(conn, outbox.table), outbox, ours, datetime.now(UTC).date())
    column_missing = any(change.kind is ChangeKind.MISSING_COLUMN for change in planned.changes)
    if planned.state is State.BLOCKED and column_missing:
        raise Failed(planned.why, where=f"table {planned.name}", remedy=planned.remedy)


def _check_progress_topic(definition: Definition, names: RelayNames, shards: int) -> None:
    found = topics.inspect(definition.kafka, [names.progress_topic])[names.progress_topic]
    if found is None or found.partitions < shards:
        have = "is missing" if found is None else f"has {found.partitions} partitions for {shards} shards"
        raise Failed(have, where=f"topic {names.progress_topic}", remedy=_SET_UP)
    _check_rights(definition, names.progress_topic)


def _check_rights(definition: Definition, topic: str) -> None:
    # When Kafka refuses a transaction it does not say for which topic: rows would be blamed.
    admin = administrator(definition.kafka)
    asked = admin.client.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
    allowed = admin.wait(asked[topic], topics.TIMEOUT_SECONDS).authorized_operations
    missing = [one.name for one in (AclOperation.READ, AclOperation.WRITE) if one not in (allowed or (one,))]
    if missing:
        raise AccessDenied(
            f"Kafka refuses {' and '.join(missing)}",
            where=f"topic {topic}",
            remedy="grant it, or run with --transactions off",
        )
