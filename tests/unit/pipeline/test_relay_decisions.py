"""The relay's decisions: shares of shards, numbers of batches, whom a refusal is about."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import KafkaError

from outbox_connectors.record import Record, Row
from outbox_pipeline.relay.batches import Progress, resume
from outbox_pipeline.relay.poison import Fault, Search, fault_of, size_of, why_undeliverable
from outbox_pipeline.relay.shards import moves
from outbox_pipeline.relay.unwritable_topics import LONGEST_SECONDS, UnwritableTopics
from outbox_pipeline.relay.wakeup import PollingDelay

ROW = Row("id", "order", "42", "OrderPlaced", "1", "{}", "2026-11-29 12:00:00+00", None, None, None, None)


@pytest.mark.parametrize(("shards", "workers"), [(8, 1), (8, 2), (8, 3), (8, 4), (8, 8), (8, 12), (16, 5)])
def test_workers_come_to_their_shares_and_leave_no_shard(shards: int, workers: int) -> None:
    rng = random.Random(shards * workers)
    owned: list[set[int]] = [set() for _ in range(workers)]
    owned[0] = set(range(shards))
    for _ in range(4):
        for mine in owned:
            held = set().union(*owned)
            todo = moves(shards, workers, mine=mine, held=held, rng=rng)
            assert not (todo.release and todo.take)
            mine -= set(todo.release)
            mine |= set(todo.take)
    assert sorted(shard for mine in owned for shard in mine) == list(range(shards))
    assert max(map(len, owned)) <= -(-shards // workers)


def test_a_lonely_worker_takes_everything_free_and_nothing_held() -> None:
    todo = moves(8, 1, mine=(), held=(3, 4), rng=random.Random(1))
    assert sorted(todo.take) == [0, 1, 2, 5, 6, 7]


@pytest.mark.parametrize(
    ("noted", "committed", "then"),
    [
        (None, None, Progress()),
        (None, 7, Progress(last=7)),  # the row was lost with its table: numbers go on
        (5, 5, Progress(last=5, published=5)),  # killed between Kafka's commit and the next transaction
        (5, 4, Progress(last=5, unsent=5)),  # killed before Kafka's commit
        (5, None, Progress(last=5, unsent=5)),  # the group's offsets have expired: rather twice than never
        (5, 9, Progress(last=9, published=5)),  # PostgreSQL lost commits in a fail-over
    ],
)
def test_who_takes_over_knows_whether_the_last_batch_is_in_the_topics(
    noted: int | None, committed: int | None, then: Progress
) -> None:
    assert resume(noted, committed) == then


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_halving_finds_the_refused_row_and_sends_every_other_one(size: int) -> None:
    for poison in {0, size // 2, size - 1}:
        left, search, sent, rounds = list(range(size)), Search(), [], 0
        while left:
            rounds += 1
            batch = left[: search.limit(1000)]
            if poison not in batch:
                sent += batch
                left = left[len(batch) :]
                search = search.sent(len(batch))
            elif len(batch) == 1:
                left, search = left[1:], Search()
            else:
                search = search.refused(len(batch))
        assert sent == [at for at in range(size) if at != poison]
        assert rounds <= 25


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Fault.ROW),
        (KafkaError.INVALID_RECORD, Fault.ROW),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Fault.TOPIC),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Fault.TOPIC),
        # After an abort the next transaction fails once more with this; no row is to blame.
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, Fault.NOBODY),
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, Fault.NOBODY),
        (KafkaError.NOT_ENOUGH_REPLICAS, Fault.NOBODY),
    ],
)
def test_whom_a_refusal_is_about(code: int, fault: Fault) -> None:
    assert fault_of(code) is fault


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"payload": None}, ""),
        ({"aggregate_id": None}, "aggregate_id is NULL"),
        ({"aggregate_id": ""}, "aggregate_id is empty"),
        ({"occurred_at": None}, "occurred_at is NULL"),
        ({"aggregate_type": "a/b"}, "aggregate_type 'a/b' cannot be part of a topic name"),
        ({"aggregate_type": ".."}, "aggregate_type '..' cannot be part of a topic name"),
        ({"aggregate_type": ""}, "aggregate_type '' cannot be part of a topic name"),
    ],
)
def test_rows_that_can_never_become_records(change: dict[str, str | None], why: str) -> None:
    assert why_undeliverable(Row(**{**ROW._asdict(), **change})) == why


def test_the_size_of_a_record_is_an_upper_bound() -> None:
    made = Record("t", b"key", b"v" * 100, (("id", b"x" * 36), ("headers", None)))
    assert 100 + 3 + 2 + 36 + 7 < size_of(made) < 300


def test_parked_types_wait_longer_each_time() -> None:
    paused, now, waits = UnwritableTopics(), 100.0, []
    for _ in range(8):
        paused.pause("order", now)
        assert paused.now(now) == ("order",)
        before = now
        while paused.now(now):
            now += 0.5
        waits.append(now - before)
    assert waits[0] == 2.0
    assert waits[-1] == LONGEST_SECONDS
    assert waits == sorted(waits)


def test_an_idle_worker_asks_less_than_once_a_second() -> None:
    pace = PollingDelay()
    for _ in range(30):
        pace.missed()
    assert pace.seconds == 2.0
    pace.found()
    assert pace.seconds <= 0.01
