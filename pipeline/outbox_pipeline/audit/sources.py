"""Where ids are read from: the outbox and its history, the topics, a consumer's inbox."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from psycopg import sql
from psycopg.rows import TupleRow, scalar_row

from outbox_connectors.definition import Definition
from outbox_connectors.record import HEADERS
from outbox_pipeline import sql as statements
from outbox_pipeline import tail
from outbox_pipeline.errors import Failed, Unreachable
from outbox_pipeline.kafka import unreachable

CHUNK: Final = 20_000
METADATA_SECONDS: Final = 10.0
_ID, _OCCURRED_AT = HEADERS.index("id"), HEADERS.index("occurred_at")


def rows(
    conn: psycopg.Connection[TupleRow], tables: list[sql.Identifier], since: datetime | None
) -> Iterator[list[bytes]]:
    """Read the ids of rows, chunk by chunk, from one snapshot of all tables."""
    with conn.transaction():
        conn.execute(statements.get("audit_one_snapshot"))
        for number, table in enumerate(tables):
            query = sql.SQL(statements.get("audit_read_outbox")).format(table=table)
            yield from chunks(conn, f"audit_{number}", query, {"since": since})


def applied(
    conn: psycopg.Connection[TupleRow], table: sql.Identifier, consumer: str | None
) -> Iterator[list[bytes]]:
    """Read the ids a consumer has applied, chunk by chunk."""
    query = sql.SQL(statements.get("audit_read_inbox")).format(inbox=table)
    try:
        with conn.transaction():
            yield from chunks(conn, "audit_inbox", query, {"consumer": consumer})
    except psycopg.errors.UndefinedTable as error:
        problem = error.diag.message_primary or "there is no such inbox"
        raise Failed(problem, remedy="name the inbox with --inbox-table") from error


def chunks(
    conn: psycopg.Connection[TupleRow], name: str, query: sql.Composed, values: dict[str, Any]
) -> Iterator[list[bytes]]:
    """Read a query's only column, chunk by chunk, through a cursor of the open transaction."""
    with conn.cursor(name, row_factory=scalar_row) as cursor:
        cursor.execute(query, values, binary=True)
        while found := cursor.fetchmany(CHUNK):
            yield found


class Topics:
    """A reader of every event topic of a pipeline, outside every group; commits nothing."""

    def __init__(self, definition: Definition, since: datetime | None) -> None:
        self._servers = f"Kafka at {definition.kafka.client.get('bootstrap.servers', '')}"
        self._since = "" if since is None else since.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        settings: dict[str, Any] = {
            **definition.kafka.client,
            "group.id": f"outboxctl-audit-{definition.pipeline}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": 32_768,
            "log_level": 2,
        }
        self._consumer = Consumer(settings)
        self._partitions = self._assign(definition, since)
        self._ended: set[tuple[str | None, int | None]] = set()

    def _assign(self, definition: Definition, since: datetime | None) -> int:
        pattern = tail.topic_pattern(definition.kafka.topic)
        try:
            found = self._consumer.list_topics(timeout=METADATA_SECONDS).topics
            start = OFFSET_BEGINNING if since is None else int(since.timestamp() * 1000)
            parts = [
                TopicPartition(name, number, start)
                for name, topic in found.items()
                if pattern.fullmatch(name) and name not in _own_topics(definition)
                for number in topic.partitions
            ]
            if since is not None and parts:
                # A partition without a younger record answers with its end.
                parts = self._consumer.offsets_for_times(parts, timeout=METADATA_SECONDS)
        except KafkaException as error:
            raise unreachable(self._servers, [error.args[0]]) from error
        self._consumer.assign(parts)
        return len(parts)

    def to_the_end(self) -> Iterator[list[bytes]]:
        """Read the ids of all records up to the ends the partitions have when they are reached."""
        while len(self._ended) < self._partitions:
            yield self.more(1.0)

    def more(self, seconds: float) -> list[bytes]:
        """Read ids that are there now or arrive within `seconds`."""
        first = self._consumer.poll(seconds)
        messages = [] if first is None else [first, *self._consumer.consume(CHUNK, 0)]
        return [one for message in messages if (one := self._id(message)) is not None]

    def _id(self, message: Message) -> bytes | None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._ended.add((message.topic(), message.partition()))
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise Unreachable(f"Kafka refuses us: {error.str()}", where=self._servers)
            return None
        headers: Any = message.headers()
        if not headers or headers[_ID][0] != "id":
            return None  # somebody else's record
        if self._since and headers[_OCCURRED_AT][1].decode() < self._since:
            return None
        try:
            return unhexlify(headers[_ID][1].replace(b"-", b""))
        except (ValueError, AttributeError):
            return None

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


def _own_topics(definition: Definition) -> set[str]:
    """Name the topics of the pipeline that hold no events although the template may match them."""
    return {definition.message_topic, f"{definition.pipeline}.relay"}
