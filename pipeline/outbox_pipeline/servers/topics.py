"""Kafka topics: what is there, and making it what the definition asks for. Nothing is ever deleted.

A record's partition is `murmur2(key) & 0x7fffffff % partitions`, for Kafka Connect's producer and,
with `partitioner=murmur2_random`, for librdkafka's. So adding partitions moves keys: from then on
an aggregate's new events may land in another partition than its old ones, and their order holds
only for a consumer that has finished with the old ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from outbox_connectors.definition import Kafka, TopicSpec
from outbox_pipeline.errors import Failed, UsageError
from outbox_pipeline.servers.kafka import Administrator, administrator

TIMEOUT_SECONDS = 10.0
POLL_SECONDS = 0.05

_REMEDIES = {
    KafkaError.INVALID_REPLICATION_FACTOR: "lower replication_factor to the number of brokers that run",
    KafkaError.INVALID_PARTITIONS: "a topic can only get more partitions, never fewer",
    KafkaError.INVALID_CONFIG: "mend the topic's config in the definition",
    KafkaError.POLICY_VIOLATION: "ask the cluster's operators what their policy for topics allows",
    KafkaError.TOPIC_EXCEPTION: "use letters, digits, '.', '_' and '-' only, at most 249 characters",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "create the topic first",
}


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the broker describes it. `config` holds every effective property, defaults included."""

    name: str
    partitions: int
    replication_factor: int  # of the partition that has fewest replicas
    config: Mapping[str, str]
    overrides: Mapping[str, str]  # the part of `config` that was set on this topic
    leaderless: int  # partitions that nobody can write to at the moment


def inspect(
    kafka: Kafka,
    names: Iterable[str],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, TopicState | None]:
    """Describe topics; None stands for one that does not exist. Never creates a topic by asking.

    Raises Unreachable when the broker does not answer within `timeout_seconds` or refuses us.
    """
    admin = administrator(kafka, clock=clock)
    descriptions = _describe(admin, list(dict.fromkeys(names)), timeout_seconds)
    configs = _configs(admin, [name for name, found in descriptions.items() if found], timeout_seconds)
    return {
        name: _state(found, configs[name]) if found else None  # a topic deleted in between has no config
        for name, found in descriptions.items()
    }


def create(
    kafka: Kafka,
    specs: Sequence[TopicSpec],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Create topics and wait until each can be written to. Returns the names that were really created.

    One that exists already (or that somebody else creates at the same moment) is left as it is.
    Raises Failed with the topic's name when the broker refuses one; those before it stay.
    """
    if not specs:
        return ()
    admin = administrator(kafka, clock=clock)
    wanted = [
        NewTopic(s.name, s.partitions, replication_factor=s.replication_factor, config=dict(s.config))
        for s in specs
    ]
    created = []
    for name, future in admin.client.create_topics(wanted, request_timeout=timeout_seconds).items():
        try:
            admin.wait(future, timeout_seconds)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _failed(error, f"topic {name} cannot be created", admin.servers) from error
    _await(
        admin,
        [spec.name for spec in specs],
        lambda state: state is not None and all(p.leader is not None for p in state.partitions),
        timeout_seconds,
        sleep,
    )
    return tuple(created)


def add_partitions(
    kafka: Kafka,
    counts: Mapping[str, int],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Raise topics to these totals of partitions and wait until they are visible.

    Moves keys to other partitions (see the module); the caller must have said so to the user.
    Raises Failed where a topic is missing or has more partitions already.
    """
    if not counts:
        return
    admin = administrator(kafka, clock=clock)
    wanted = [NewPartitions(name, total) for name, total in counts.items()]
    for name, future in admin.client.create_partitions(wanted, request_timeout=timeout_seconds).items():
        try:
            admin.wait(future, timeout_seconds)
        except KafkaException as error:
            raise _failed(
                error, f"topic {name} cannot get {counts[name]} partitions", admin.servers
            ) from error
    _await(
        admin,
        list(counts),
        lambda state: state is not None and len(state.partitions) >= counts[state.name],
        timeout_seconds,
        sleep,
    )


def alter_config(
    kafka: Kafka,
    changes: Mapping[str, Mapping[str, str | None]],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Set properties of topics (None: back to the broker's default), leaving all others as they are.

    Waits until the broker reports the new values. Raises Failed for a property or value it refuses.
    """
    if not any(changes.values()):
        return
    admin = administrator(kafka, clock=clock)
    resources = [_altered(name, properties) for name, properties in changes.items() if properties]
    answers = admin.client.incremental_alter_configs(resources, request_timeout=timeout_seconds)
    for resource, future in answers.items():
        try:
            admin.wait(future, timeout_seconds)
        except KafkaException as error:
            raise _failed(error, f"topic {resource.name} cannot be changed", admin.servers) from error
    deadline = clock() + timeout_seconds
    while not _shows(_configs(admin, list(changes), timeout_seconds), changes):
        if clock() > deadline:
            raise Failed(
                "the broker took the new topic properties but does not show them", where=admin.servers
            )
        sleep(POLL_SECONDS)


def _altered(name: str, properties: Mapping[str, str | None]) -> ConfigResource:
    entries = [
        ConfigEntry(
            key,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in properties.items()
    ]
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)


def _shows(
    configs: Mapping[str, Mapping[str, ConfigEntry]], changes: Mapping[str, Mapping[str, str | None]]
) -> bool:
    return all(
        configs[name][key].value == value
        for name, properties in changes.items()
        for key, value in properties.items()
        if value is not None
    )


def _state(found: TopicDescription, config: Mapping[str, ConfigEntry]) -> TopicState:
    values = {key: entry.value for key, entry in config.items() if entry.value is not None}
    return TopicState(
        name=found.name,
        partitions=len(found.partitions),
        replication_factor=min((len(p.replicas) for p in found.partitions), default=0),
        config=values,
        overrides={
            key: value
            for key, value in values.items()
            if ConfigSource(config[key].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
        },
        leaderless=sum(1 for p in found.partitions if p.leader is None),
    )


def _describe(
    admin: Administrator, names: Sequence[str], timeout_seconds: float
) -> dict[str, TopicDescription | None]:
    if not names:
        return {}
    if "" in names:
        raise UsageError("a topic needs a name")
    answers = admin.client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_seconds)
    return {name: _described(admin, name, future, timeout_seconds) for name, future in answers.items()}


def _described(
    admin: Administrator, name: str, future: Future[TopicDescription], timeout_seconds: float
) -> TopicDescription | None:
    try:
        return admin.wait(future, timeout_seconds)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise _failed(error, f"topic {name} cannot be described", admin.servers) from error


def _configs(
    admin: Administrator, names: Sequence[str], timeout_seconds: float
) -> dict[str, Mapping[str, ConfigEntry]]:
    if not names:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    answers = admin.client.describe_configs(resources, request_timeout=timeout_seconds)
    configs: dict[str, Mapping[str, ConfigEntry]] = {}
    for resource, future in answers.items():
        try:
            configs[resource.name] = admin.wait(future, timeout_seconds)
        except KafkaException as error:
            raise _failed(error, f"topic {resource.name} cannot be described", admin.servers) from error
    return configs


def _await(
    admin: Administrator,
    names: Sequence[str],
    ready: Callable[[TopicDescription | None], bool],
    timeout_seconds: float,
    sleep: Callable[[float], None],
) -> None:
    """Wait until every topic is as asked: the controller answers before the brokers know."""
    deadline = admin.clock() + timeout_seconds
    while True:
        late = [n for n, state in _describe(admin, names, timeout_seconds).items() if not ready(state)]
        if not late:
            return
        if admin.clock() > deadline:
            raise Failed(
                f"topic {late[0]} was taken by the controller but is not ready after {timeout_seconds:.0f} s",
                where=admin.servers,
                remedy="check that every broker runs",
            )
        sleep(POLL_SECONDS)


def _failed(error: KafkaException, what: str, where: str) -> Failed:
    reason = error.args[0]
    return Failed(f"{what}: {reason.str().rstrip('.')}", where=where, remedy=_REMEDIES.get(reason.code(), ""))
