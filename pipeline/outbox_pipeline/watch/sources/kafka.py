"""Sample Kafka: where the outbox topics end, and how far the groups have read them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException

from outbox_connectors.definition import Kafka
from outbox_pipeline.servers.kafka import Administrator, administrator
from outbox_pipeline.servers.offset_reader import GONE, TIMEOUT_SECONDS, OffsetReader, Partition
from outbox_pipeline.watch.sample import GroupSample, KafkaSample

TOPICS_SECONDS = 30.0  # new topics and partitions may be noticed this late
NO_GROUP = "outboxctl-watch"  # a consumer has to name a group, also where none is watched
NO_SUCH_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.COORDINATOR_NOT_AVAILABLE})

Offsets = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class _Clients:
    """The clients of a source: a reader for the topics, one for each group, an administrator for members."""

    topics: OffsetReader
    groups: dict[str, OffsetReader]
    admin: Administrator | None


class KafkaSource:
    """Clients that only read and join no group. Not safe for two threads at once."""

    def __init__(
        self,
        kafka: Kafka,
        groups: Iterable[str],
        *,
        message_topic: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # librdkafka waits up to 10 s before it tries a broker again; a watch wants to see it sooner.
        self._kafka = replace(kafka, client={"reconnect.backoff.max.ms": "1000", **kafka.client})
        self._groups = tuple(groups)
        self._message_topic = message_topic
        self._message_topic_exists: bool | None = None
        self._clock = clock
        self._clients: _Clients | None = None
        self._partitions: tuple[Partition, ...] = ()
        self._listed_at = -TOPICS_SECONDS

    def look(self) -> KafkaSample:
        """Take one sample. Raises Unreachable and KafkaException."""
        if self._clients is None:
            self._clients = self._connect()
        clients = self._clients
        _forget_reasons(clients)
        if self._clock() - self._listed_at >= TOPICS_SECONDS or not self._partitions:
            self._list(clients.topics)
        ends, starts = self._ends_and_starts(clients.topics)
        missing = [name for name in self._named() if name not in {topic for topic, _ in self._partitions}]
        return KafkaSample(
            ends=ends,
            starts=starts,
            groups=self._look_at_groups(clients),
            missing_topics=tuple(missing),
            message_topic=self._message_topic_exists,
        )

    def close(self) -> None:
        """Drop the clients; a sample that is still running keeps its own until it ends.

        The next sample makes new ones.
        """
        self._clients = None

    def _connect(self) -> _Clients:
        groups = {group: OffsetReader(self._kafka, group) for group in self._groups}
        topics = next(iter(groups.values())) if groups else OffsetReader(self._kafka, NO_GROUP)
        admin = administrator(self._kafka, clock=self._clock) if groups else None
        return _Clients(topics, groups, admin)

    def _named(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self._kafka.aggregates.values())

    def _list(self, reader: OffsetReader) -> None:
        """List the partitions of every topic that the definition's template matches."""
        before, _, after = self._kafka.topic.partition("{aggregate_type}")
        pattern = re.compile(f"{re.escape(before)}.+{re.escape(after)}")
        topics = reader.partitions()
        if self._message_topic:
            self._message_topic_exists = self._message_topic in topics
        wanted = {name for name in topics if pattern.fullmatch(name)} | (set(self._named()) & set(topics))
        self._partitions = tuple((name, number) for name in sorted(wanted) for number in topics[name])
        self._listed_at = self._clock()

    def _ends_and_starts(self, reader: OffsetReader) -> tuple[Offsets, Offsets]:
        """Ask where the partitions end and begin; one deleted since it was listed is left out."""
        try:
            ends, starts = self._offsets(reader, OFFSET_END), self._offsets(reader, OFFSET_BEGINNING)
        except KafkaException as error:
            self._listed_at = -TOPICS_SECONDS
            if error.args[0].code() not in GONE:
                raise
            self._list(reader)
            ends, starts = self._offsets(reader, OFFSET_END), self._offsets(reader, OFFSET_BEGINNING)
        if len(ends) < len(self._partitions):
            self._listed_at = -TOPICS_SECONDS
        return ends, starts

    def _offsets(self, reader: OffsetReader, where: int) -> Offsets:
        return reader.offsets(self._partitions, where)

    def _look_at_groups(self, clients: _Clients) -> tuple[GroupSample, ...]:
        if clients.admin is None:
            return ()
        described = clients.admin.client.describe_consumer_groups(list(self._groups))
        return tuple(
            self._group(clients.admin, name, described[name], reader)
            for name, reader in clients.groups.items()
        )

    def _group(
        self, admin: Administrator, name: str, described: Future[Any], reader: OffsetReader
    ) -> GroupSample:
        known = set(self._partitions)
        try:
            description = admin.wait(described, TIMEOUT_SECONDS)
            committed = reader.committed(self._partitions)
        except KafkaException as error:
            if error.args[0].code() not in NO_SUCH_GROUP:
                raise
            return GroupSample(name=name, state="DEAD", members=0, committed={})
        return GroupSample(
            name=name,
            state=description.state.name,
            members=len(description.members),
            committed=committed,
            assigned=frozenset(
                partition.topic
                for member in description.members
                if member.assignment
                for partition in member.assignment.topic_partitions
                if (partition.topic, partition.partition) in known
            ),
        )


def _forget_reasons(clients: _Clients) -> None:
    """Drop the errors that the clients met before this sample: they do not explain its failure."""
    for reader in (clients.topics, *clients.groups.values()):
        reader.forget_reasons()
    if clients.admin is not None:
        clients.admin.reasons.clear()
