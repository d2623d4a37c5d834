"""The number of a shard's last batch as Kafka knows it: a record inside the transaction of the batch.

A partition of the progress topic stands for a shard. `send_offsets_to_transaction` would carry the number
too, but librdkafka 2.16 keeps the retry of that call in a variable of the whole process
(rd_kafka_txn_handle_TxnOffsetCommit), so two producers that retry at once, as after a broker was killed,
lose the call of one for ever; its time-out does not hold either (librdkafka#5456). A record costs no
request of its own and does not expire with its group.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Event
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from outbox_pipeline.errors import AccessDenied, DefinitionError, OutboxError, Unreachable

# How long one call waits before the worker's `abandoned` flag is checked again.
CALL_SECONDS: Final = 1.0
# How long a partition that is gone is waited for: a broker that has just begun may not know it yet.
MISSING_SECONDS: Final = 15.0
# A batch, also one that was aborted, leaves two offsets: its record and the marker of its transaction.
FIRST_SPAN: Final = 40
_FORBIDDEN: Final = frozenset(
    {
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_MISSING: Final = frozenset(
    {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
)


class Abandoned(OutboxError):
    """The worker no longer waits for the result: its session is gone, or it has to end."""


def check_rights(reason: KafkaError, topic: str, *, about_topic: bool) -> None:
    """Raise AccessDenied where Kafka refuses what the relay's transactions need.

    `about_topic`: an error about a topic is about the progress topic.
    """
    if reason.code() in _FORBIDDEN or (
        about_topic and reason.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    ):
        raise AccessDenied(
            f"Kafka refuses the relay's transactions: {reason.str()}",
            remedy=f"grant WRITE and DESCRIBE on its transactional ids, and READ and WRITE on topic {topic}, "
            "or run with --transactions off",
        )


def read_number(config: Mapping[str, Any], topic: str, shard: int, abandoned: Event) -> int | None:
    """Read the number of the last batch that was committed; None: there was none.

    No transaction on the partition may be open: the caller has fenced the producers. Blocks
    while the broker is away. Raises Abandoned, DefinitionError, and Unreachable: rights or the partition are
    missing.
    """
    found_at = time.monotonic()
    try:
        consumer = Consumer(dict(config))
    except (KafkaException, ValueError, TypeError) as error:
        raise DefinitionError(
            f"librdkafka refuses kafka.client: {error}", remedy="mend it in the definition"
        ) from error
    try:
        while not abandoned.is_set():
            try:
                return _newest(consumer, TopicPartition(topic, shard), abandoned)
            except KafkaException as error:
                reason = error.args[0]
                check_rights(reason, topic, about_topic=True)
                if reason.code() not in _MISSING:
                    found_at = time.monotonic()
                elif time.monotonic() - found_at > MISSING_SECONDS:
                    raise Unreachable(
                        f"partition {shard} is gone: {reason.str()}",
                        where=f"topic {topic}",
                        remedy="run outboxctl relay --init",
                    ) from error
                abandoned.wait(0.05)
    finally:
        consumer.close()
    raise Abandoned("the worker has to go")


def _newest(consumer: Consumer, part: TopicPartition, abandoned: Event) -> int | None:
    """Look at the end of the partition, and further back as long as only aborted batches are there."""
    ends = consumer.get_watermark_offsets(part, timeout=CALL_SECONDS)
    if ends is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    low, end = ends
    span = FIRST_SPAN
    while low < end:
        begin = max(low, end - span)
        number = _last_between(consumer, part, begin, end, abandoned)
        if number is not None or begin == low:
            return number
        span *= 10
    return None


def _number(value: Any, before: int | None) -> int | None:
    """Read the number of a batch; records of other writers are ignored. The largest is a bigint."""
    return int(value) if value and value.isdigit() and len(value) < 20 else before


def _last_between(
    consumer: Consumer, part: TopicPartition, begin: int, end: int, abandoned: Event
) -> int | None:
    consumer.assign([TopicPartition(part.topic, part.partition, begin)])
    number: int | None = None
    while not abandoned.is_set():
        for message in consumer.consume(500, CALL_SECONDS / 2):
            reason, offset = message.error(), message.offset()
            if reason is None:
                number = _number(message.value(), number)
                if offset is not None and offset >= end - 2:  # behind it is only its transaction's marker
                    return number
            elif reason.code() == KafkaError._PARTITION_EOF:
                if offset is None or offset < end:
                    raise KafkaException(reason)  # a broker that has just started: ask again
                return number
            else:
                check_rights(reason, part.topic, about_topic=True)
    raise Abandoned("the worker has to go")
