"""The backlog: records of partitions that wait for a retry of their first record, in order.

A failing event holds up its own partition only. What Kafka delivers of that partition meanwhile is added
here; the other partitions continue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import Message

from outbox_consumers.failures.dead_letter import NO_FAILURES, FailureHistory
from outbox_consumers.loop.group_member import Partition, partition_of


@dataclass(slots=True)
class HeldRecords:
    """The held records of one partition. The first one is the one that failed."""

    messages: list[Message]
    due: float  # monotonic clock
    history: FailureHistory = NO_FAILURES  # of the first record's event


class Backlog:
    """Held records by partition."""

    def __init__(self) -> None:
        self._held: dict[Partition, HeldRecords] = {}

    def __len__(self) -> int:
        return sum(len(held.messages) for held in self._held.values())

    def __contains__(self, partition: object) -> bool:
        return partition in self._held

    def hold(self, messages: list[Message], due: float, history: FailureHistory = NO_FAILURES) -> None:
        """Hold records of one partition, in order, behind those that it already holds."""
        partition = partition_of(messages[0])
        held = self._held.get(partition)
        if held is not None:
            held.messages.extend(messages)
        else:
            self._held[partition] = HeldRecords(list(messages), due, history)

    def hold_each(self, messages: Iterable[Message], due: float) -> None:
        """Hold records of any partitions until `due`."""
        for message in messages:
            self.hold([message], due)

    def hold_or_return(self, messages: list[Message]) -> list[Message]:
        """Hold the records whose partition is held already and return the others."""
        if not self._held:
            return messages
        free = []
        for message in messages:
            held = self._held.get(partition_of(message))
            if held is None:
                free.append(message)
            else:
                held.messages.append(message)
        return free

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Discard the records of partitions that were revoked: Kafka delivers them to the next owner."""
        for partition in partitions:
            self._held.pop(partition, None)

    def take(self, partition: Partition) -> HeldRecords:
        """Remove the records of a partition and return them."""
        return self._held.pop(partition)

    def due(self, now: float) -> list[Partition]:
        """Return the partitions whose first record is due, the longest waiting first."""
        ready = [(held.due, partition) for partition, held in self._held.items() if held.due <= now]
        return [partition for _, partition in sorted(ready)]

    def seconds_until_due(self, now: float, longest: float) -> float:
        """Return the number of seconds until the next partition is due, at most `longest`."""
        return max(0.0, min([longest, *(held.due - now for held in self._held.values())]))

    def longer_than(self, limit: int) -> set[Partition]:
        """Return the partitions that hold more than `limit` records and should be paused."""
        return {p for p, held in self._held.items() if len(held.messages) > limit}
