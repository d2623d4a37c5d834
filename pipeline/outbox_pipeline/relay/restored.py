"""Is the database an older copy than Kafka has seen? The numbers of the batches tell."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Unreachable
from outbox_pipeline.ids import publisher
from outbox_pipeline.relay.names import RelayNames
from outbox_pipeline.relay.settings import progress_config
from outbox_pipeline.servers.kafka import unreachable

Connection = psycopg.Connection[TupleRow]
ASK_SECONDS = 30.0
TAIL = 40  # offsets: some batches, each with the marker of its transaction


def ahead(conn: Connection, names: RelayNames, published: Mapping[int, int]) -> dict[int, int]:
    """Find the shards of which Kafka holds a batch with a greater number than PostgreSQL has noted.

    A batch is noted before it is published, so this happens only to a database that was restored, that was
    failed over and lost the end of its log, or whose relay was set up anew. `published` was read before, by
    `last_published`: the notes only grow.
    """
    query = sql.SQL(statements.get("relay_read_batches")).format(batch=names.qualified(names.batch))
    noted = {int(shard): int(n) for shard, n in conn.execute(query)}
    return {shard: n for shard, n in published.items() if n > noted.get(shard, 0)}


def admit(conn: Connection, definition: Definition, names: RelayNames, published: Mapping[int, int]) -> None:
    """Let a relay begin, or raise Refused because it could publish rows a second time.

    Once it is proven that no row of an older copy is in a topic, the copy has caught up, and the next relay
    is not asked for proof. Raises Unreachable.
    """
    found = ahead(conn, names, published)
    publisher.admit_relay(conn, definition, restored=bool(found))
    catch_up = sql.SQL(statements.get("relay_catch_up")).format(batch=names.qualified(names.batch))
    for shard, n in found.items():
        conn.execute(catch_up, {"shard": shard, "n": n})


def last_published(
    definition: Definition, names: RelayNames, shards: int, *, patience_seconds: float = ASK_SECONDS
) -> dict[int, int]:
    """Read the number of the last batch of each shard, from the end of its partition. Raises Unreachable."""
    servers = f"Kafka at {definition.kafka.client.get('bootstrap.servers', '')}"
    settings = {**progress_config(definition, names), "enable.partition.eof": True}
    consumer = Consumer(settings)
    try:
        tails = []
        for shard in range(shards):
            part = TopicPartition(names.progress_topic, shard)
            low, end = consumer.get_watermark_offsets(part, timeout=patience_seconds)
            if low < end:
                tails.append(TopicPartition(names.progress_topic, shard, max(low, end - TAIL)))
        consumer.assign(tails)
        return _last_numbers(consumer, len(tails), servers, patience_seconds)
    except KafkaException as error:
        raise unreachable(servers, [error.args[0]]) from error
    finally:
        consumer.close()


def _last_numbers(
    consumer: Consumer, partitions: int, servers: str, patience_seconds: float
) -> dict[int, int]:
    found: dict[int, int] = {}
    ended: set[int | None] = set()
    deadline = time.monotonic() + patience_seconds
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
