"""The topics of a pipeline: one per known aggregate type and one for logical messages.

Aggregate types the definition does not name get their topic from Connect (`topic.creation.default.*`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from confluent_kafka import KafkaError, KafkaException

from outbox_connectors.definition import Definition, Kafka, TopicSpec
from outbox_connectors.profile import MESSAGE_TOPIC_RETENTION_MS
from outbox_pipeline.errors import Failed
from outbox_pipeline.servers import topics
from outbox_pipeline.servers.kafka import administrator
from outbox_pipeline.servers.plan import FieldChange, ObjectPlan, State, blocked
from outbox_pipeline.servers.topics import TopicState

KIND = "topic"
# The broker's default for max.message.bytes. The outbox's CHECK constraints keep a record below it.
SMALLEST_MESSAGE_LIMIT = 1_048_588
# Lowering one of these deletes events that are there, or refuses events that were welcome before.
_NARROWED_BY_LESS = frozenset({"retention.ms", "retention.bytes", "local.retention.ms", "max.message.bytes"})
_NARROWED_BY_CHANGE = frozenset({"cleanup.policy", "delete.retention.ms"})


def specs(definition: Definition) -> tuple[TopicSpec, ...]:
    """List every topic the pipeline should have, in the order in which they are made."""
    replicas = definition.kafka.defaults.replication_factor
    own = {"retention.ms": str(MESSAGE_TOPIC_RETENTION_MS)}
    found = [*definition.kafka.aggregates.values(), TopicSpec(definition.message_topic, 1, replicas, own)]
    if definition.watch.ticker is None:
        found.append(TopicSpec(heartbeat_topic(definition), 1, replicas, own))
    return tuple(found)


def heartbeat_topic(definition: Definition) -> str:
    """Name the topic of the connector's own heartbeat (Debezium's `topic.heartbeat.prefix` default)."""
    return f"__debezium-heartbeat.{definition.topic_prefix}"


def plan(live: TopicState | None, spec: TopicSpec, *, add_partitions: bool = False) -> ObjectPlan:
    """Compare a topic with what it should be. Pure.

    More partitions or another replication factor than asked for stay as they are. Fewer partitions
    are blocked unless `add_partitions`: adding them moves keys to other partitions.
    """
    if live is None:
        return ObjectPlan(KIND, spec.name, State.MISSING, statement=_statement(spec, spec.config))
    config = list(_config(live, spec))
    narrowing = [change for change in config if _narrows(change, live)]
    changes = list(config)
    if live.partitions < spec.partitions:
        changes.insert(0, FieldChange("partitions", str(live.partitions), str(spec.partitions)))
        if not add_partitions:
            return blocked(
                KIND,
                spec.name,
                f"has {live.partitions} partitions, the definition asks for {spec.partitions}, and adding "
                "some moves keys to other partitions",
                "wait until consumers have caught up and run apply --add-partitions, or ask for "
                f"{live.partitions} in the definition",
                changes=changes,
            )
    if narrowing:
        first = narrowing[0]
        return blocked(
            KIND,
            spec.name,
            f"{first.field} is {first.have}, and {first.want} could delete or refuse events",
            f"kafka-configs.sh --alter --topic {spec.name} --add-config {first.field}={first.want}, "
            f"or write {first.have} in the definition",
            changes=changes,
        )
    warnings = tuple(_warnings(live, spec))
    if not changes:
        return ObjectPlan(KIND, spec.name, State.PRESENT, warnings=warnings)
    return ObjectPlan(
        KIND,
        spec.name,
        State.DIFFERENT,
        changes=tuple(changes),
        statement=_statement(spec, {change.field: change.want for change in config}),
        warnings=warnings,
    )


def make(definition: Definition, planned: ObjectPlan) -> None:
    """Create or change one topic as planned. Raises Failed or Unreachable."""
    carry_out(
        definition.kafka, next(spec for spec in specs(definition) if spec.name == planned.name), planned
    )


def carry_out(kafka: Kafka, spec: TopicSpec, planned: ObjectPlan) -> None:
    """Make a topic what it should be. Raises Failed or Unreachable."""
    if planned.state is State.MISSING:
        topics.create(kafka, [spec])
        return
    fields = {change.field: change.want for change in planned.changes}
    if "partitions" in fields:
        topics.add_partitions(kafka, {spec.name: int(fields.pop("partitions"))})
    if fields:
        topics.alter_config(kafka, {spec.name: fields})


def remove(definition: Definition, name: str) -> None:
    """Delete one topic with every event in it, and wait until it is gone. Raises Failed or Unreachable."""
    admin = administrator(definition.kafka)
    for future in admin.client.delete_topics([name]).values():
        try:
            admin.wait(future, topics.TIMEOUT_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise Failed(error.args[0].str(), where=f"topic {name}") from error


def _config(live: TopicState, spec: TopicSpec) -> Iterator[FieldChange]:
    for name, want in spec.config.items():
        have = live.config.get(name)
        if have != want:
            yield FieldChange(name, "not set" if have is None else have, want)
    limit = live.config.get("max.message.bytes")
    if "max.message.bytes" not in spec.config and limit and int(limit) < SMALLEST_MESSAGE_LIMIT:
        yield FieldChange("max.message.bytes", limit, str(SMALLEST_MESSAGE_LIMIT))


def _narrows(change: FieldChange, live: TopicState) -> bool:
    if change.field in _NARROWED_BY_CHANGE:
        return True
    if change.field not in _NARROWED_BY_LESS or change.field not in live.config:
        return False
    have, want = int(change.have), int(change.want)
    return want >= 0 and (have < 0 or want < have)  # -1 is without limit


def _warnings(live: TopicState, spec: TopicSpec) -> Iterator[str]:
    if live.replication_factor < spec.replication_factor:
        yield (
            f"{spec.name} has {live.replication_factor} replicas, the definition asks for "
            f"{spec.replication_factor}: move them with kafka-reassign-partitions.sh"
        )
    if live.leaderless:
        yield f"{live.leaderless} partitions of {spec.name} have no leader and take no events"


def _statement(spec: TopicSpec, config: Mapping[str, str]) -> str:
    return json.dumps(
        {
            "topic": spec.name,
            "partitions": spec.partitions,
            "replication_factor": spec.replication_factor,
            "config": dict(config),
        }
    )
