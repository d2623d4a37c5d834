"""Read offsets with the calls of a consumer, since the same calls of AdminClient crash the process.

Two faults of librdkafka (seen with 2.16.0, present in its source at 2.15.0 as well) end a Python process with
SIGSEGV, and nothing in Python can catch that:

- AdminClient.list_offsets looks for the partition leaders in the caller's thread. When they are not all
  known, it registers the request for the next metadata and goes on using it; metadata that arrives in that
  moment lets another thread finish and free it (rd_kafka_topic_partition_list_query_leaders_async_worker).
  AdminClient.delete_records takes the same path.
- AdminClient.list_consumer_group_offsets tells its consumer group to look for the coordinator again when the
  broker answers NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE, as one that restarts does. An AdminClient has
  no consumer group, so this reads through a null pointer (rd_kafka_handle_OffsetFetch).

Consumer.offsets_for_times, committed and list_topics wait in the caller's thread for an answer of their own
and have the consumer group, so neither can happen to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from outbox_connectors.definition import Kafka
from outbox_pipeline.errors import AccessDenied
from outbox_pipeline.servers.kafka import (
    FORBIDDEN,
    NO_ANSWER,
    REFUSED_SETTINGS,
    log,
    refused_settings,
    unreachable,
)

TIMEOUT_SECONDS = 5.0
GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

Partition = tuple[str, int]
Answer = TypeVar("Answer")


class OffsetReader:
    """A consumer that is given a group's name but never joins it, reads no record and commits nothing.

    Not safe for two threads at once. Every method waits at most TIMEOUT_SECONDS and raises Unreachable for
    a broker that does not answer or refuses us, and KafkaException for every other refusal. There is nothing
    to leave, so the connections end when the last reference is dropped.
    """

    def __init__(self, kafka: Kafka, group: str) -> None:
        """Connect when first asked. Raises DefinitionError for a property that librdkafka refuses."""
        self._servers = f"Kafka at {kafka.client.get('bootstrap.servers', '')}"
        self._reasons: list[KafkaError] = []
        settings: dict[str, Any] = {
            "log_level": 2,
            **kafka.client,
            "group.id": group,
            "enable.auto.commit": False,
            # Where the log ends, not where the last finished transaction does; and no waiting for one.
            "isolation.level": "read_uncommitted",
            "error_cb": self._reasons.append,
        }
        try:
            self._consumer = Consumer(settings, logger=log)
        except REFUSED_SETTINGS as error:
            raise refused_settings(error) from error

    def forget_reasons(self) -> None:
        """Drop what went wrong earlier, so that a later error is not explained with it."""
        self._hear_reasons()
        self._reasons.clear()

    def partitions(self) -> dict[str, list[int]]:
        """Name every topic there is, with its partitions."""
        topics = self._ask(lambda: self._consumer.list_topics(timeout=TIMEOUT_SECONDS).topics)
        return {name: sorted(topic.partitions) for name, topic in topics.items()}

    def offsets(self, partitions: Iterable[Partition], where: int) -> dict[Partition, int]:
        """Say where partitions end (OFFSET_END) or begin (OFFSET_BEGINNING); a deleted one is left out.

        Kafka answers with these instead of a time (KIP-79). Asks every leader once. Raises KafkaException
        with a code in GONE when a broker was asked for a partition that it no longer has.
        """
        wanted = [TopicPartition(*partition, where) for partition in partitions]
        if not wanted:
            return {}
        answers = self._ask(lambda: self._consumer.offsets_for_times(wanted, timeout=TIMEOUT_SECONDS))
        return _values(answers)

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Say what the group committed; a partition for which it never did is left out."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        answers = self._ask(lambda: self._consumer.committed(wanted, timeout=TIMEOUT_SECONDS))
        return {partition: offset for partition, offset in _values(answers).items() if offset >= 0}

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        except KafkaException as error:
            self._hear_reasons()
            reason = error.args[0]
            if reason.code() in FORBIDDEN:
                raise AccessDenied(
                    f"Kafka refuses us: {reason.str()}",
                    where=self._servers,
                    remedy="grant this user DESCRIBE on the topics and the groups",
                ) from error
            if reason.code() in NO_ANSWER:
                raise unreachable(self._servers, self._reasons or [reason]) from error
            raise

    def _hear_reasons(self) -> None:
        """Let the client call back with what it met. There are no records, only errors, for which it did."""
        while self._consumer.poll(0) is not None:
            pass


def _values(answers: Iterable[TopicPartition]) -> dict[Partition, int]:
    found = {}
    for answer in answers:
        if answer.error is None:
            found[answer.topic, answer.partition] = answer.offset
        elif answer.error.code() not in GONE:
            raise KafkaException(answer.error)
    return found
