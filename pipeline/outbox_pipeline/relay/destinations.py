"""The topics that a relay writes to: created when their first event comes, sizes known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from threading import Lock

from outbox_connectors.definition import Definition, TopicSpec
from outbox_pipeline.errors import Failed, OutboxError
from outbox_pipeline.servers import topics
from outbox_pipeline.servers.kafka import KafkaForbids


class TopicUnavailable(OutboxError):
    """A topic that does not exist and cannot be created now, or may not be used."""

    def __init__(self, topic: str, cause: str) -> None:
        super().__init__(cause, where=f"topic {topic}")
        self.topic = topic


@dataclass(slots=True)
class Destinations:
    """What is known of the topics, shared by the threads of a worker."""

    definition: Definition
    _limits: dict[str, int | None] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def limits(self, names: Iterable[str]) -> dict[str, int | None]:
        """Look at each topic once, create what is missing, and tell how large a record may be.

        None: a record is compressed first, so nobody knows before it is sent.
        Raises TopicUnavailable; other failures to reach Kafka pass for later.
        """
        with self._lock:
            fresh = [name for name in names if name not in self._limits]
            for name in fresh:
                self._limits[name] = self._look(name)
            return {name: self._limits[name] for name in names}

    def _look(self, name: str) -> int | None:
        kafka = self.definition.kafka
        try:
            found = topics.inspect(kafka, [name])[name]
            if found is None:
                topics.create(kafka, [self._spec(name)])
                found = topics.inspect(kafka, [name])[name]
        except (Failed, KafkaForbids) as error:
            raise TopicUnavailable(name, error.problem) from error
        if found is None:
            raise TopicUnavailable(name, "was created and is gone again")
        compressed = {kafka.client.get(key) for key in ("compression.type", "compression.codec")} - {
            None,
            "none",
        }
        return None if compressed else int(found.config.get("max.message.bytes", "1048588"))

    def _spec(self, name: str) -> TopicSpec:
        kafka = self.definition.kafka
        known = {spec.name: spec for spec in kafka.aggregates.values()}
        return known.get(name) or replace(kafka.defaults, name=name)
