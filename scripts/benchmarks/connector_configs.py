"""The two connectors that ours is measured against, as literal configurations.

`defaults` sets what the event router requires and leaves everything else to Debezium. `tuned` is what
an experienced engineer writes for an outbox on Debezium 3.7: short polls, a heartbeat, bounded retries,
failures that stop the task instead of dropping events. Neither reads our profile, so a change to it
cannot change what it is compared with.
"""

from __future__ import annotations

DEFAULTS = "Debezium's defaults"
TUNED = "tuned by hand"
OURS = "our profile"

_STRING = "org.apache.kafka.connect.storage.StringConverter"
_PLACEMENT = ",".join(
    f"{column}:header:{column}"
    for column in (
        "event_type",
        "event_version",
        "occurred_at",
        "traceparent",
        "correlation_id",
        "causation_id",
        "headers",
    )
)


def defaults(name: str, database: dict[str, str], topic: str) -> dict[str, str]:
    """Render the smallest configuration that works. `topic` may contain `${routedByValue}`."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        **database,
        "topic.prefix": name,
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": name,
        "table.include.list": r"public\.outbox",
        "key.converter": _STRING,
        "value.converter": _STRING,
        "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
        "predicates": "isOutbox",
        "predicates.isOutbox.type": "org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
        "predicates.isOutbox.pattern": rf"{name}\.public\.outbox",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.predicate": "isOutbox",
        "transforms.outbox.table.field.event.key": "aggregate_id",
        "transforms.outbox.route.by.field": "aggregate_type",
        "transforms.outbox.route.topic.replacement": topic,
        "transforms.outbox.table.fields.additional.placement": _PLACEMENT,
    }


def tuned(name: str, database: dict[str, str], topic: str) -> dict[str, str]:
    """Render a configuration with carefully chosen settings."""
    return {
        **defaults(name, database, topic),
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "lsn.flush.mode": "connector",
        "offset.mismatch.strategy": "no_validation",
        "skipped.operations": "u,d,t",
        "tombstones.on.delete": "false",
        "provide.transaction.metadata": "false",
        "heartbeat.interval.ms": "10000",
        "heartbeat.action.query": "SELECT pg_logical_emit_message(false, 'outbox-heartbeat', '')",
        "message.prefix.exclude.list": "outbox-heartbeat",
        "slot.max.retries": "15",
        "slot.retry.delay.ms": "2000",
        "errors.max.retries": "30",
        "retriable.restart.connector.wait.ms": "5000",
        "errors.tolerance": "none",
        "errors.log.enable": "true",
        "errors.log.include.messages": "false",
        "event.processing.failure.handling.mode": "fail",
        "event.converting.failure.handling.mode": "fail",
        "guardrail.collections.max": "1",
        "guardrail.collections.limit.action": "fail",
        "poll.interval.ms": "10",
        "max.queue.size.in.bytes": "67108864",
        "producer.override.compression.type": "lz4",
        "topic.creation.default.partitions": "6",
        "topic.creation.default.replication.factor": "1",
        "extended.headers.enabled": "false",
        "transforms.outbox.table.op.invalid.behavior": "fatal",
    }
