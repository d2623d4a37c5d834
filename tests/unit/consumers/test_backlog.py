"""Held records: in order, by partition, until due."""

from __future__ import annotations

from confluent_kafka import Message

from outbox_consumers.failures.dead_letter import FailureHistory
from outbox_consumers.loop.backlog import Backlog


def record(partition: int, offset: int) -> Message:
    return Message(topic="t", partition=partition, offset=offset)


def offsets(messages: list[Message]) -> list[tuple[int | None, int | None]]:
    return [(m.partition(), m.offset()) for m in messages]


def test_records_of_a_held_partition_are_held_behind_the_failing_one() -> None:
    backlog = Backlog()
    backlog.hold([record(0, 5)], due=10, history=FailureHistory(1))
    free = backlog.hold_or_return([record(0, 6), record(1, 1), record(0, 7)])
    assert offsets(free) == [(1, 1)]
    assert len(backlog) == 3
    held = backlog.take(("t", 0))
    assert offsets(held.messages) == [(0, 5), (0, 6), (0, 7)]
    assert (held.history.attempts, held.due) == (1, 10)
    assert ("t", 0) not in backlog


def test_records_held_later_go_behind_and_keep_the_first_one_s_state() -> None:
    backlog = Backlog()
    backlog.hold([record(0, 5)], due=10, history=FailureHistory(3))
    backlog.hold([record(0, 6)], due=99)
    held = backlog.take(("t", 0))
    assert (held.due, held.history.attempts, offsets(held.messages)) == (10, 3, [(0, 5), (0, 6)])


def test_due_partitions_are_ordered_by_time() -> None:
    backlog = Backlog()
    backlog.hold_each([record(0, 1)], due=3)
    backlog.hold_each([record(1, 1)], due=2)
    backlog.hold_each([record(2, 1)], due=9)
    assert backlog.due(now=5) == [("t", 1), ("t", 0)]
    assert backlog.seconds_until_due(now=1, longest=0.5) == 0.5
    assert (
        backlog.seconds_until_due(now=1.8, longest=0.5) == 0.2
        or abs(backlog.seconds_until_due(1.8, 0.5) - 0.2) < 1e-9
    )
    assert backlog.seconds_until_due(now=5, longest=0.5) == 0


def test_the_records_of_a_revoked_partition_are_discarded() -> None:
    backlog = Backlog()
    backlog.hold([record(0, 5)], due=0)
    backlog.drop([("t", 0), ("t", 7)])
    assert len(backlog) == 0
    assert backlog.due(100) == []


def test_partitions_with_long_backlogs_are_returned() -> None:
    backlog = Backlog()
    backlog.hold([record(0, n) for n in range(5)], due=0)
    backlog.hold([record(1, 0)], due=0)
    assert backlog.longer_than(4) == {("t", 0)}
