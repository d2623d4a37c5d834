"""A shard that a worker owns: its producer, its batch in flight, and what happens next."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum

from confluent_kafka import KafkaError

from outbox_connectors import backoff
from outbox_connectors.definition import Kafka
from outbox_connectors.record import Record, Row, row_record
from outbox_pipeline.relay.batches import Progress
from outbox_pipeline.relay.destinations import Destinations
from outbox_pipeline.relay.poison import Search, size_of
from outbox_pipeline.relay.producer import PlainProducer, RefusedBatch, ShardProducer

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 10.0


class Phase(StrEnum):
    """The state of an owned shard."""

    TAKING = "taking"  # a thread fences the previous owner
    READY = "ready"  # nothing is in flight
    SENDING = "sending"  # a thread publishes a batch
    PAUSING = "pausing"  # a refused batch waits to be sent again


@dataclass(slots=True)
class ShardPublisher:
    """A shard that this worker owns."""

    shard: int
    producer: ShardProducer | PlainProducer
    future: Future[int | None] | None
    phase: Phase = Phase.TAKING
    progress: Progress = field(default_factory=Progress)
    rows: list[Row] = field(default_factory=list)  # of the batch in flight, number `progress.last`
    search: Search = field(default_factory=Search)
    may_have_rows: bool = True  # the outbox may have rows of this shard
    to_release: bool = False  # to be released when nothing is in flight
    attempts: int = 0  # of the batch in flight
    resume_at: float = 0.0  # when a pausing batch is sent again

    def pause(self, now: float) -> None:
        """Delay the next attempt to send the batch, longer each time."""
        self.attempts += 1
        delay = backoff.delay(self.attempts, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self.phase, self.resume_at = Phase.PAUSING, now + delay


def publish(
    producer: ShardProducer | PlainProducer,
    rows: Sequence[Row],
    n: int,
    kafka: Kafka,
    destinations: Destinations,
) -> int | None:
    """Build the records of a batch and publish them. Runs in a thread of its own.

    Raises RefusedBatch, TopicUnavailable, Fenced, Abandoned and Unreachable.
    """
    records = [row_record(row, kafka.topic_of(row.aggregate_type)) for row in rows]
    limits = destinations.limits({made.topic for made in records})
    for at, made in enumerate(records):
        _check_size(at, made, limits[made.topic])
    producer.send(records, n)
    return None


def _check_size(at: int, made: Record, limit: int | None) -> None:
    # Measuring exactly costs more than asking whether a record can be near the limit at all.
    if limit is None or len(made.value or b"") + 20_000 < limit:
        return
    size = size_of(made)
    if size > limit:
        cause = f"the record has {size:,} bytes, topic {made.topic} takes {limit:,} (max.message.bytes)"
        raise RefusedBatch(KafkaError.MSG_SIZE_TOO_LARGE, cause, at)
