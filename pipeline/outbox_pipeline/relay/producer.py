"""A shard's producer: one Kafka transaction per batch, with the batch's number inside.

No delivery callbacks: after a fatal error the client would raise SystemError while it dispatches
them. `commit_transaction` alone says cleanly what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from outbox_connectors.record import Record
from outbox_pipeline.errors import DefinitionError, OutboxError, Unreachable

# How long one call waits before the worker's wishes are looked at again.
CALL_SECONDS: Final = 1.0
# A call that has not come back after this never will: librdkafka 2.16 sometimes loses
# send_offsets_to_transaction when the broker is killed under it (measured).
STUCK_SECONDS: Final = 8.0
_OFFSET_UNKNOWN: Final = -1001
_FORBIDDEN: Final = frozenset(
    {
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class Fenced(OutboxError):
    """Another producer has taken this shard, or the broker gave this one up. A new one is needed."""


class Abandoned(OutboxError):
    """The worker no longer wants the result: its session is gone, or it has to end."""


class RefusedBatch(OutboxError):
    """Nothing of the batch is visible. `at` is the row to blame, where the client knows it."""

    def __init__(self, code: int, cause: str, at: int | None = None) -> None:
        super().__init__(cause)
        self.code = code
        self.at = at


class ShardProducer:
    """The transactional producer of one shard. Lives as long as the shard is ours and not fenced."""

    def __init__(self, config: dict[str, Any], progress: Consumer, topic: str, shard: int) -> None:
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
        """Fence whoever had the shard, and read the number of its last committed batch.

        A transaction the predecessor left open is finished or aborted before this returns. Blocks
        while the broker is away. Raises Fenced, Abandoned and Unreachable (missing rights).
        """
        self._call(self._producer.init_transactions)
        while not self.abandoned.is_set():
            try:
                asked = [TopicPartition(self._topic, self._shard)]
                (answer,) = self._progress.committed(asked, timeout=CALL_SECONDS)
            except KafkaException as error:
                _check_rights(error.args[0])
                time.sleep(0.05)
                continue
            if answer.error is None:
                return None if answer.offset == _OFFSET_UNKNOWN else int(answer.offset)
        raise Abandoned("the worker has to go")

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
        position = [TopicPartition(self._topic, self._shard, n)]
        group = self._progress.consumer_group_metadata()
        self._call(lambda wait: self._producer.send_offsets_to_transaction(position, group, wait))
        self._call(self._producer.commit_transaction)

    def _produce(self, at: int, made: Record) -> None:
        try:
            self._producer.produce(made.topic, made.value, made.key, headers=list(made.headers))
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

    def _call(self, call: Callable[[float], Any]) -> None:
        """Repeat a transactional call until it has an answer."""
        while not self.abandoned.is_set():
            self._calling_since = time.monotonic()
            try:
                call(CALL_SECONDS)
            except KafkaException as error:
                self._calling_since = None
                reason = error.args[0]
                _check_rights(reason)
                if reason.fatal():
                    raise Fenced(reason.str()) from error
                if reason.txn_requires_abort():
                    self._abort()
                    raise RefusedBatch(reason.code(), reason.str()) from error
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
        """Know nothing: the batch of the predecessor is sent again."""
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
            while self._producer.flush(CALL_SECONDS):
                if self.abandoned.is_set():
                    raise Abandoned("the worker has to go")
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
                self._producer.flush()
                raise RefusedBatch(reason.code(), reason.str(), at) from error
            raise Fenced(reason.str()) from error
        except BufferError as error:
            raise RefusedBatch(KafkaError._QUEUE_FULL, "the producer's queue is full") from error

    def _raise_failed(self) -> None:
        telling = [found for found in self._failed if found[1].code() != KafkaError._PURGE_QUEUE]
        if self._failed:
            error = (telling or self._failed)[0][1]
            raise RefusedBatch(error.code(), error.str())


def _check_rights(reason: KafkaError) -> None:
    if reason.code() in _FORBIDDEN:
        raise Unreachable(
            f"Kafka refuses the relay's transactions: {reason.str()}",
            remedy="grant WRITE and DESCRIBE on its transactional ids and READ on its group, "
            "or run with --transactions off",
        )
