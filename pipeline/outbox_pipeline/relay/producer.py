"""A shard's producer: one Kafka transaction per batch, with the batch's number inside.

No delivery callbacks: after a fatal error the client would raise SystemError while it dispatches
them. `commit_transaction` alone says cleanly what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from outbox_connectors.record import Record
from outbox_pipeline.errors import DefinitionError, OutboxError
from outbox_pipeline.relay.progress import CALL_SECONDS, Abandoned, check_rights, read_number

# A call that has not returned after this is abandoned. Each is asked to return after CALL_SECONDS, so
# this is for what the client loses; a machine that is merely busy has to have time enough.
STUCK_SECONDS: Final = 30.0
_BY_KEY: Final = -1  # RD_KAFKA_PARTITION_UA: the partitioner decides


class Fenced(OutboxError):
    """Another producer has taken this shard, or the broker refuses this one. A new one is needed."""


class RefusedBatch(OutboxError):
    """Nothing of the batch is visible. `at` is the row to blame, where the client knows it.

    `spent`: the producer is of no use any more.
    """

    def __init__(self, code: int, cause: str, at: int | None = None, *, spent: bool = False) -> None:
        super().__init__(cause)
        self.code = code
        self.at = at
        self.spent = spent


class ShardProducer:
    """The transactional producer of one shard. Used until the shard is released or the producer fenced."""

    def __init__(self, config: dict[str, Any], progress: Mapping[str, Any], topic: str, shard: int) -> None:
        """Prepare. `progress` configures the consumer that reads the number of the last batch."""
        try:
            self._producer = Producer(config)
        except (KafkaException, ValueError, TypeError) as error:
            raise DefinitionError(
                f"librdkafka refuses kafka.client: {error}", remedy="mend it in the definition"
            ) from error
        self._progress = progress
        self._topic = topic
        self._shard = shard
        self._calling_since: float | None = None
        self.abandoned = Event()

    def stuck(self, now: float) -> bool:
        """Tell whether a call to the client is lost, `now` being time.monotonic()."""
        since = self._calling_since
        return since is not None and now - since > STUCK_SECONDS

    def take_over(self) -> int | None:
        """Fence the previous owner of the shard, and read the number of its last committed batch.

        A transaction the predecessor left open is finished or aborted before this returns. Blocks
        while the broker is away. Raises Fenced, Abandoned and Unreachable (missing rights).
        """
        self._call(self._producer.init_transactions)
        return read_number(self._progress, self._topic, self._shard, self.abandoned)

    def send(self, records: Sequence[Record], n: int) -> None:
        """Publish a batch under its number: all of it becomes visible, in order, or nothing.

        Blocks while the broker is away. Raises RefusedBatch, Fenced and Abandoned.
        """
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise Fenced(error.args[0].str()) from error
        for at, made in enumerate(records):
            self._produce(at, made)
        self._note(n)
        self._call(self._producer.commit_transaction)

    def _note(self, n: int) -> None:
        """Put the number of the batch beside its records."""
        number = Record(self._topic, str(self._shard).encode(), str(n).encode(), ())
        try:
            self._produce(None, number, self._shard)
        except RefusedBatch as error:  # no row is to blame
            if error.code == KafkaError._QUEUE_FULL:
                raise
            where = f"topic {self._topic}, partition {self._shard}"
            raise Fenced(
                f"the number of the batch cannot be written: {error.problem}", where=where
            ) from error

    def _produce(self, at: int | None, made: Record, partition: int = _BY_KEY) -> None:
        try:
            self._producer.produce(made.topic, made.value, made.key, partition, headers=list(made.headers))
        except KafkaException as error:
            reason = error.args[0]
            if reason.fatal() or reason.code() == KafkaError._FATAL:
                raise Fenced(reason.str()) from error
            self._abort()
            raise RefusedBatch(reason.code(), reason.str(), at) from error
        except BufferError as error:
            self._abort()
            raise RefusedBatch(KafkaError._QUEUE_FULL, "the producer's queue is full") from error

    def _abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def _aborted(self) -> bool:
        """Abort after a refusal. False: the broker refused all of the transaction and does not know of it."""
        try:
            self._abort()
        except Fenced:
            return False
        return True

    def _call(self, call: Callable[[float], Any]) -> None:
        """Repeat a transactional call until it has an answer."""
        while not self.abandoned.is_set():
            self._calling_since = time.monotonic()
            try:
                call(CALL_SECONDS)
            except KafkaException as error:
                self._calling_since = None
                reason = error.args[0]
                check_rights(reason, self._topic, about_topic=f'"{self._topic}"' in reason.str())
                if reason.fatal():
                    raise Fenced(reason.str()) from error
                if reason.txn_requires_abort():
                    raise RefusedBatch(reason.code(), reason.str(), spent=not self._aborted()) from error
                if not reason.retriable() and reason.code() != KafkaError._TIMED_OUT:
                    raise Fenced(reason.str()) from error
                time.sleep(0.01)
            else:
                self._calling_since = None
                return
        raise Abandoned("the worker has to go")


class PlainProducer:
    """The producer of `--transactions off`: idempotent, acknowledged, at least once."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._producer = Producer(config)
        self.abandoned = Event()
        self._failed: list[tuple[int, KafkaError]] = []

    def stuck(self, now: float) -> bool:
        """Never: flush keeps to its time-out."""
        return False

    def take_over(self) -> int | None:
        """Return None, unknown: the previous owner's batch is sent again."""
        return None

    def send(self, records: Sequence[Record], n: int) -> None:
        """Publish a batch and wait until every record is acknowledged.

        Raises RefusedBatch when one was not: those before it may be visible, and come again. The
        producer is of no use afterwards, so no later record can have overtaken the refused one.
        """
        self._failed.clear()
        for at, made in enumerate(records):
            self._produce(at, made)
        try:
            self._flush()
        except (SystemError, KafkaException) as error:  # fatal, see the module
            self._raise_failed()
            raise Fenced(str(error)) from error
        self._raise_failed()

    def _produce(self, at: int, made: Record) -> None:
        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                self._failed.append((at, error))

        try:
            self._producer.produce(
                made.topic, made.value, made.key, headers=list(made.headers), on_delivery=delivered
            )
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._flush()
                raise RefusedBatch(reason.code(), reason.str(), at) from error
            raise Fenced(reason.str()) from error
        except BufferError as error:
            raise RefusedBatch(KafkaError._QUEUE_FULL, "the producer's queue is full") from error

    def _flush(self) -> None:
        while self._producer.flush(CALL_SECONDS):
            if self.abandoned.is_set():
                raise Abandoned("the worker has to go")

    def _raise_failed(self) -> None:
        telling = [found for found in self._failed if found[1].code() != KafkaError._PURGE_QUEUE]
        if self._failed:
            error = (telling or self._failed)[0][1]
            raise RefusedBatch(error.code(), error.str())
