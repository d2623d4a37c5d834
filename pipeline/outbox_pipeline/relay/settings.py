"""The settings of a relay, and the properties of its Kafka clients. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from outbox_connectors.definition import Definition
from outbox_pipeline.relay.names import RelayNames
from outbox_pipeline.relay.poison import OnPoison
from outbox_pipeline.servers.kafka import BY_ITSELF

# Each transaction costs the broker markers in every partition it touched: 2000 events instead of 1000
# were 1.4 times as fast, 4000 no faster than that.
DEFAULT_BATCH: Final = 2000
MAX_BATCH: Final = 10_000
MAX_BATCH_BYTES: Final = 8_000_000
# The broker's default for a topic's max.message.bytes, which counts the record's frame as well.
MAX_RECORD_BYTES: Final = 1_048_588
TRANSACTION_TIMEOUT_MS: Final = 10_000
# The longest pause between two tries to reach a broker; the client's own 10 s would follow every outage.
RECONNECT_MS: Final = 1000
# PostgreSQL ends the session, and with it the locks, of a worker that is frozen for this long.
IDLE_SESSION_MS: Final = 10_000


class Mode(StrEnum):
    """What becomes of a row that was published."""

    DELETE = "delete"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """What can be chosen for a run of the relay."""

    workers: int = 1
    batch: int = DEFAULT_BATCH
    mode: Mode = Mode.DELETE
    transactions: bool = True
    on_poison: OnPoison = OnPoison.BLOCK_AGGREGATE
    until_empty: bool = False


def producer_config(
    definition: Definition, names: RelayNames, shard: int, *, transactions: bool
) -> dict[str, Any]:
    """Write librdkafka's properties for the producer of a shard.

    What the definition says in kafka.client wins, except over what order and partition rest on.
    """
    config: dict[str, Any] = {
        "log_level": 2,
        "linger.ms": 5,
        # Right after a commit the coordinator often answers CONCURRENT_TRANSACTIONS, and the client waits
        # this long before it asks again: 10 instead of 100 ms more than doubled the rate.
        "retry.backoff.ms": 10,
        "reconnect.backoff.max.ms": RECONNECT_MS,
        "message.max.bytes": MAX_RECORD_BYTES,
        "batch.size": _batch_size(definition),
        **definition.kafka.client,
        "enable.idempotence": True,
        # Kafka's own hash: the partition that Kafka Connect's producer would choose.
        "partitioner": "murmur2_random",
    }
    if transactions:
        # A relay that dies in a transaction holds readers back until this has passed.
        config["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
        config["transactional.id"] = names.transactional_id(shard)
    else:
        # A record that times out while later ones get through would be overtaken.
        config["message.timeout.ms"] = 0
        config["enable.gapless.guarantee"] = True
    return config


def _batch_size(definition: Definition) -> int:
    """Keep requests below the smallest limit that the definition gives a topic: it counts all records."""
    kafka = definition.kafka
    specs = (kafka.defaults, *kafka.aggregates.values())
    limits = [int(spec.config.get("max.message.bytes", MAX_RECORD_BYTES)) for spec in specs]
    return max(1, min(1_000_000, *(limit * 9 // 10 for limit in limits)))


def progress_config(definition: Definition, names: RelayNames) -> dict[str, Any]:
    """Write librdkafka's properties for the consumer that reads batch numbers: it commits nothing."""
    client: Mapping[str, str] = definition.kafka.client
    return {
        **BY_ITSELF,
        "reconnect.backoff.max.ms": RECONNECT_MS,
        "fetch.wait.max.ms": 10,
        **client,
        "group.id": names.group,  # librdkafka wants one
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
