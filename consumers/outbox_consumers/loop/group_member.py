"""The member of the consumer group: fetch records, store offsets, follow assigned and revoked partitions.

One thread uses the client; only the `close` at the end runs in another. Callbacks run inside poll, consume
and close; ours only set attributes and never raise, since a callback that raises makes the client lose
records that it has already taken from its queue.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Thread
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox_consumers.errors import Failed, FencedConsumer, Unreachable
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")

Partition: TypeAlias = tuple[str, int]

POLL_SECONDS: Final = 0.25  # how long a fetch waits for a record
OPEN_SECONDS: Final = 10.0
COMMIT_REQUEST_SECONDS: Final = 5.0
LEAVE_SECONDS: Final = 10.0

# Error codes of librdkafka that mean missing rights. Other errors are only logged.
_DENIED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
)


def partition_of(message: Message) -> Partition:
    """Return the partition of a record."""
    return message.topic() or "", message.partition() or 0


class CommitWatch:
    """Detects that Kafka accepts no offset commits any more.

    With group.protocol=consumer the client has no session timer of its own: a member whose heartbeats do
    not reach the group coordinator is replaced, and handles the same records as its successor for as long
    as it can fetch (measured on Kafka 4.3: 677 of 677 records in 34 s, without any callback).
    """

    def __init__(self, limit: float, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._waiting_since: float | None = None

    def stored(self) -> None:
        """Note that an offset is stored and waits for its commit."""
        if self._waiting_since is None:
            self._waiting_since = self._clock()

    def committed(self) -> None:
        """Note that no offset waits for a commit."""
        self._waiting_since = None

    def stalled(self) -> bool:
        """Return whether offsets have waited for longer than the limit."""
        return self._waiting_since is not None and self._clock() - self._waiting_since > self._limit


class GroupMember:
    """A member of the consumer group and its partitions, from `open` to `close`."""

    def __init__(
        self,
        settings: dict[str, Any],
        topics: Sequence[str],
        counters: ConsumerCounters,
        commit_timeout: float = 45.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._without_timer = settings.get("group.protocol") == "consumer"
        self._watch = CommitWatch(commit_timeout if self._without_timer else math.inf, clock)
        self._paused_by_stall = False
        self._clock = clock
        self._request_at = 0.0
        self._topics = list(topics)
        self._counters = counters
        self._user_commit: Callable[..., None] | None = settings.get("on_commit")
        # Without a logger the client writes to stderr, in a format of its own.
        self._settings = {"logger": log} | settings | {"on_commit": self._committed}
        self._client: Consumer | None = None
        self._changed: list[Partition] = []
        self._paused: set[Partition] = set()
        self._paused_before: set[Partition] = set()  # all that ever were
        self._to_resume: set[Partition] = set()

    def open(self) -> None:
        """Join the group. Raises Unreachable when no broker answers, Failed for a topic that is not there."""
        try:
            client = Consumer(self._settings)
        except (KafkaException, ValueError, TypeError) as error:
            raise Failed(
                f"Kafka's client rejects the configuration: {_text(error)}", remedy="correct kafka={...}"
            ) from None
        try:
            self._check_topics(client)
            client.subscribe(self._topics, self._assigned, self._revoked, self._revoked)
        except BaseException:
            client.close()
            raise
        self._client = client

    def fetch(self, limit: int, timeout: float) -> list[Message]:
        """Wait up to `timeout` seconds for a record; return it and those already fetched, up to `limit`.

        `consume` is called with a time-out of 0, since it would wait the whole time-out to fill the list.
        Raises FencedConsumer or Unreachable for permanent errors.
        """
        client = self._required()
        self._pause_while_commits_stall(client)
        first = client.poll(timeout)
        self._resume_assigned()
        if first is None:
            return []
        before = len(self._changed)
        rest = client.consume(limit - 1, 0) if limit > 1 else []
        # consume() leaves out records of revoked partitions; the record of poll() has to be checked here.
        if len(self._changed) > before and partition_of(first) in self._changed[before:]:
            messages = rest
        else:
            messages = [first, *rest]
        if [message for message in messages if message.error() is not None]:
            messages = [message for message in messages if not self._failed(message)]
        return messages

    def changed_partitions(self) -> list[Partition]:
        """Return the partitions that were revoked or assigned since the last call."""
        changed, self._changed = self._changed, []
        return changed

    def store(self, messages: Iterable[Message]) -> None:
        """Store the offsets behind these records, one per partition; the client commits them.

        An offset of a partition that is not assigned any more is not stored but counted (`fenced`): the next
        owner finds the events in the inbox.
        """
        client = self._required()
        for message in messages:
            try:
                client.store_offsets(message)
                self._watch.stored()
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise
                self._counters.fenced += 1

    def pause(self, wanted: Collection[Partition]) -> None:
        """Pause these partitions and resume all others. Resuming takes up to a second."""
        client = self._required()
        fresh = [p for p in wanted if p not in self._paused]
        over = [p for p in self._paused if p not in wanted]
        if fresh:
            client.pause([TopicPartition(*p) for p in fresh])
        if over:
            client.resume([TopicPartition(*p) for p in over])
        self._paused = set(wanted)
        self._paused_before |= self._paused

    def lag(self) -> dict[Partition, int]:
        """Return how many records of each assigned partition are not fetched yet. Sends no request.

        The end of a partition is that of its last fetch; partitions without a fetch are left out.
        """
        client, behind = self._required(), {}
        for position in client.position(client.assignment()):
            _, end = client.get_watermark_offsets(position, cached=True)
            if position.offset >= 0 and end >= 0:
                behind[(position.topic, position.partition)] = max(0, end - position.offset)
        return behind

    def close(self) -> None:
        """Commit the stored offsets and leave the group. Waits up to LEAVE_SECONDS.

        The client waits for a broker that does not answer: 45 seconds with group.protocol=consumer
        (librdkafka 2.16), for ever with the classic protocol while an offset commit is in flight
        (librdkafka#3740; seen at one member of 150 whose broker was killed). Process managers wait less, so
        after LEAVE_SECONDS a background thread is left waiting: the group detects the missing member by its
        session time-out, and events whose offsets were not committed are found in the inbox.
        """
        if self._client is None:
            return
        client, self._client = self._client, None
        leaving = Thread(target=client.close, name="leave the group", daemon=True)
        leaving.start()
        leaving.join(LEAVE_SECONDS)
        if leaving.is_alive():
            log.warning("Kafka does not answer; this member leaves the group when its session times out")

    def _required(self) -> Consumer:
        if self._client is None:
            raise Failed("the consumer is not connected to Kafka")
        return self._client

    def _check_topics(self, client: Consumer) -> None:
        try:
            known = client.list_topics(timeout=OPEN_SECONDS).topics
        except KafkaException as error:
            servers = self._settings.get("bootstrap.servers")
            raise Unreachable(
                _text(error), where=f"Kafka at {servers}", remedy="check bootstrap.servers and that it runs"
            ) from None
        missing = [t for t in self._topics if not t.startswith("^") and t not in known]
        if missing:
            raise Failed(
                f"no such topic: {', '.join(missing)}",
                where=f"Kafka at {self._settings.get('bootstrap.servers')}",
                remedy="create it (outboxctl apply), or correct topics=[...]",
            )

    def _failed(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return False
        code = error.code()
        if code == KafkaError._FATAL or error.fatal():
            raise FencedConsumer(
                f"Kafka ended this member: {error.str()}",
                remedy="check whether another process uses the same group.instance.id",
            )
        if code in _DENIED:
            raise Unreachable(
                f"Kafka denies access: {error.str()}", remedy="grant Read on the topics and the group"
            )
        if code == KafkaError._MAX_POLL_EXCEEDED:
            self._counters.evictions += 1
        if code != KafkaError._PARTITION_EOF:
            log.warning("Kafka: %s", error.str())
        return True

    def _assigned(self, _: object, partitions: list[TopicPartition]) -> None:
        # A partition that was paused when it was revoked is assigned paused (librdkafka), so it is resumed
        # once the client has finished assigning it.
        names = [(p.topic, p.partition) for p in partitions]
        self._changed.extend(names)
        self._to_resume.update(name for name in names if name in self._paused_before)
        log.info("assigned %s", names)

    def _revoked(self, _: object, partitions: list[TopicPartition]) -> None:
        # Also called for lost partitions: which of the two callbacks runs does not say who owns them.
        names = [(p.topic, p.partition) for p in partitions]
        self._changed.extend(names)
        self._counters.revoked += len(names)
        self._watch.committed()  # stored offsets are committed while revoking, or their partition is lost
        log.info("revoked %s", names)

    def _pause_while_commits_stall(self, client: Consumer) -> None:
        """Fetch no records while Kafka accepts no commits: the partitions may have another owner by now."""
        stalled = self._watch.stalled()
        if stalled and self._paused_by_stall:
            self._request_commit(client)
        if stalled == self._paused_by_stall:
            return
        self._paused_by_stall = stalled
        if stalled:
            self._counters.stalls += 1
            log.warning("Kafka accepts no offset commits; fetching no records until it does")
            client.pause(client.assignment())
        else:
            names = [p for p in client.assignment() if (p.topic, p.partition) not in self._paused]
            client.resume(names)

    def _request_commit(self, client: Consumer) -> None:
        """Commit the stored offsets, which the broker refuses if it has replaced this member."""
        if self._clock() < self._request_at:
            return
        self._request_at = self._clock() + COMMIT_REQUEST_SECONDS
        try:
            client.commit(asynchronous=True)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._NO_OFFSET:
                self._watch.committed()  # all of it is committed

    def _resume_assigned(self) -> None:
        if self._to_resume:
            self._required().resume([TopicPartition(*p) for p in self._to_resume])
            self._paused -= self._to_resume
            self._to_resume.clear()

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is None or error.code() == KafkaError._NO_OFFSET:
            self._watch.committed()
        else:
            self._counters.commit_errors += 1
            log.warning("Kafka refused an offset commit: %s", error.str())
        if self._user_commit is not None:
            self._user_commit(error, partitions)


def _text(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(error)
