"""Look at Kafka: where the outbox topics end, and how far the groups have read them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from outbox_connectors.definition import Kafka
from outbox_pipeline.kafka import Administrator, administrator, unreachable
from outbox_pipeline.watch.sample import GroupSample, KafkaSample

TIMEOUT_SECONDS = 5.0
TOPICS_SECONDS = 30.0  # new topics and partitions may be noticed this late
NO_SUCH_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.COORDINATOR_NOT_AVAILABLE})
LATEST: Callable[[], OffsetSpec] = OffsetSpec.latest
EARLIEST: Callable[[], OffsetSpec] = OffsetSpec.earliest

Partition = tuple[str, int]


class KafkaSource:
    """An administrator's client. Not safe for two threads at once. Reads only, joins no group."""

    def __init__(
        self, kafka: Kafka, groups: Iterable[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # librdkafka waits up to 10 s before it tries a broker again; a watch wants to see it sooner.
        self._kafka = replace(kafka, client={"reconnect.backoff.max.ms": "1000", **kafka.client})
        self._groups = tuple(groups)
        self._clock = clock
        self._admin: Administrator | None = None
        self._partitions: tuple[Partition, ...] = ()
        self._listed_at = -TOPICS_SECONDS

    def look(self) -> KafkaSample:
        """Take one sample. Raises Unreachable and KafkaException."""
        if self._admin is None:
            self._admin = administrator(self._kafka, clock=self._clock)
        admin = self._admin
        admin.reasons.clear()  # yesterday's reasons explain nothing
        if self._clock() - self._listed_at >= TOPICS_SECONDS or not self._partitions:
            self._partitions = self._list(admin)
            self._listed_at = self._clock()
        latest = self._ask(admin, LATEST())
        earliest = self._ask(admin, EARLIEST())
        described = admin.client.describe_consumer_groups(list(self._groups)) if self._groups else {}
        committed = {
            group: admin.client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
            for group in self._groups
        }
        missing = [name for name in self._named() if name not in {topic for topic, _ in self._partitions}]
        return KafkaSample(
            ends=self._offsets(admin, latest),
            starts=self._offsets(admin, earliest),
            groups=tuple(
                self._group(admin, group, described[group], committed[group]) for group in self._groups
            ),
            missing_topics=tuple(missing),
        )

    def close(self) -> None:
        """Let go of the client. The next look makes another."""
        self._admin = None

    def _named(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._kafka.aggregates.values())

    def _list(self, admin: Administrator) -> tuple[Partition, ...]:
        """List the partitions of every topic that the definition's template matches."""
        before, _, after = self._kafka.topic.partition("{aggregate_type}")
        pattern = re.compile(f"{re.escape(before)}.+{re.escape(after)}")
        try:
            topics = admin.client.list_topics(timeout=TIMEOUT_SECONDS).topics
        except KafkaException as error:
            raise unreachable(admin.servers, admin.reasons) from error
        wanted = {name for name in topics if pattern.fullmatch(name)} | (set(self._named()) & set(topics))
        return tuple((name, number) for name in sorted(wanted) for number in sorted(topics[name].partitions))

    def _ask(self, admin: Administrator, spec: OffsetSpec) -> Mapping[TopicPartition, Future[Any]]:
        if not self._partitions:
            return {}
        wanted = {TopicPartition(*partition): spec for partition in self._partitions}
        answers: Mapping[TopicPartition, Future[Any]] = admin.client.list_offsets(
            wanted, request_timeout=TIMEOUT_SECONDS
        )
        return answers

    def _offsets(
        self, admin: Administrator, answers: Mapping[TopicPartition, Future[Any]]
    ) -> dict[Partition, int]:
        found = {}
        for partition, future in answers.items():
            try:
                found[partition.topic, partition.partition] = admin.wait(future, TIMEOUT_SECONDS).offset
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                self._listed_at = -TOPICS_SECONDS  # deleted since it was listed
        return found

    def _group(
        self, admin: Administrator, name: str, described: Future[Any], committed: Future[Any]
    ) -> GroupSample:
        try:
            description = admin.wait(described, TIMEOUT_SECONDS)
            offsets = admin.wait(committed, TIMEOUT_SECONDS).topic_partitions or []
        except KafkaException as error:
            if error.args[0].code() not in NO_SUCH_GROUP:
                raise
            return GroupSample(name=name, state="DEAD", members=0, committed={})
        known = set(self._partitions)
        return GroupSample(
            name=name,
            state=description.state.name,
            members=len(description.members),
            committed={
                (p.topic, p.partition): p.offset
                for p in offsets
                if p.offset >= 0 and (p.topic, p.partition) in known
            },
            assigned=frozenset(
                partition.topic
                for member in description.members
                if member.assignment
                for partition in member.assignment.topic_partitions
                if (partition.topic, partition.partition) in known
            ),
        )
