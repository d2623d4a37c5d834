"""The names of the objects that belong to the relay of an outbox.

In PostgreSQL everything is named after the outbox table, so that two pipelines on one table meet;
in Kafka everything is named after the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from outbox_connectors.definition import Definition, Outbox, Payload

DEFAULT_SHARDS: Final = 8
MAX_SHARDS: Final = 256
WAKE_TRIGGER: Final = "wake_relay"


@dataclass(frozen=True, slots=True)
class RelayNames:
    """The objects of one relay. Table names are without schema: they live beside the outbox."""

    schema: str
    outbox: str
    pipeline: str

    @property
    def settings(self) -> str:
        """The one-row table with pipeline and number of shards."""
        return f"{self.outbox}_relay"

    @property
    def batch(self) -> str:
        """The table with the batch in flight of each shard."""
        return f"{self.outbox}_relay_batch"

    @property
    def dead_letter(self) -> str:
        """The table of rows that can never be published."""
        return f"{self.outbox}_dead_letter"

    @property
    def history(self) -> str:
        """The table that `--mode archive` moves published rows to."""
        return f"{self.outbox}_history"

    @property
    def index(self) -> str:
        """The index the relay reads by."""
        return f"{self.outbox}_relay_order"

    @property
    def blocking_index(self) -> str:
        """The index of aggregates that wait for a dead letter."""
        return f"{self.outbox}_dead_letter_blocks"

    @property
    def notify(self) -> str:
        """The trigger function that wakes the relay."""
        return f"{self.outbox}_wake_relay"

    @property
    def channel(self) -> str:
        """The channel of LISTEN and NOTIFY, at most 63 bytes."""
        return f"{self.schema}.{self.outbox}".encode()[:63].decode(errors="ignore")

    @property
    def lock(self) -> str:
        """What the advisory locks of workers and shards are derived from."""
        return f"outbox-relay {self.schema}.{self.outbox}"

    @property
    def group(self) -> str:
        """The group that readers of the progress topic name; nothing is committed to it."""
        return f"{self.pipeline}.relay"

    @property
    def progress_topic(self) -> str:
        """The topic whose partitions stand for shards: the last record of one is the last batch's number."""
        return f"{self.pipeline}.relay"

    def transactional_id(self, shard: int) -> str:
        """The transactional id of a shard: a producer that starts with it fences the previous one."""
        return f"{self.pipeline}.relay.{shard}"

    def qualified(self, name: str) -> sql.Identifier:
        """Quote one of the names with its schema."""
        return sql.Identifier(self.schema, name)


def relay_names(definition: Definition) -> RelayNames:
    """Name the relay's objects of a pipeline."""
    table = definition.outbox.table
    return RelayNames(table.schema, table.name, definition.pipeline)


def shard_of(shards: int) -> sql.Composed:
    """Write the expression that gives a row's shard, the same text in the index and in every query.

    A NULL key, which only a disabled constraint lets in, belongs to a shard too, so that it is found.
    """
    text = sql.SQL("((hashtext(coalesce(aggregate_id, ''::text)) & 2147483647) % {shards})")
    return text.format(shards=sql.Literal(shards))


def identifiers(names: RelayNames, outbox: Outbox, shards: int) -> Mapping[str, sql.Composable]:
    """Map every placeholder of the `relay_*` statements to what stands there."""
    binary = outbox.payload is Payload.BYTEA
    expression = shard_of(shards).as_string(None).replace("%", "%%")
    return {
        "table": names.qualified(names.outbox),
        "settings": names.qualified(names.settings),
        "batch": names.qualified(names.batch),
        "dead_letter": names.qualified(names.dead_letter),
        "history": names.qualified(names.history),
        "history_default": names.qualified(f"{names.history}_default"),
        "notify": names.qualified(names.notify),
        "index": sql.Identifier(names.index),
        "blocking_index": sql.Identifier(names.blocking_index),
        "channel": sql.Identifier(names.channel),
        "channel_name": sql.Literal(names.channel),
        "pipeline": sql.Literal(names.pipeline),
        "shards": sql.Literal(shards),
        "payload_type": sql.SQL("bytea" if binary else "jsonb"),
        "payload_on_the_wire": sql.SQL("payload" if binary else "payload::text"),
        "shard_of": sql.SQL(expression),
    }
