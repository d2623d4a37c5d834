"""What the Kafka side makes of commits: those that do not come, as pure time, and those that are refused."""

from __future__ import annotations

import math

import pytest
from confluent_kafka import KafkaError

from outbox_consumers.loop.group_member import CommitWatch, GroupMember
from outbox_consumers.processes.counters import ConsumerCounters


def test_commits_are_stalled_while_an_offset_waits_too_long() -> None:
    now = 0.0
    watch = CommitWatch(45, lambda: now)
    now = 1000.0
    assert not watch.stalled()  # nothing stored, nothing to wait for
    watch.stored()
    now += 40
    watch.stored()
    assert not watch.stalled()
    now += 6
    assert watch.stalled()  # counted from the first that waits
    watch.committed()
    assert not watch.stalled()


def test_commits_are_never_stalled_without_a_limit() -> None:
    now = 0.0
    watch = CommitWatch(math.inf, lambda: now)
    watch.stored()
    now = 1e9
    assert not watch.stalled()


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._STATE,
        KafkaError._WAIT_COORD,
    ],
)
def test_an_offset_commit_that_kafka_refuses_is_counted_and_raises_nothing(code: int) -> None:
    """The next owner finds the events in the inbox, so a refused commit loses and repeats nothing."""
    told: list[int] = []
    counters = ConsumerCounters()
    source = GroupMember({"on_commit": lambda error, _: told.append(error.code())}, ["t"], counters)
    source._settings["on_commit"](KafkaError(code), [])
    assert (counters.commit_errors, told) == (1, [code])
