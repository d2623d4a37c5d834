"""The durable inbox without a server: order of jobs, jobs in progress, invalid arguments."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uuid_utils.compat import uuid7

from outbox_consumers import Event
from outbox_consumers.durable import DurableInbox, Job
from outbox_consumers.durable.in_progress import JobsInProgress, RunningJob
from outbox_consumers.durable.jobs import LeasedJob, columns, queue_of
from outbox_consumers.durable.key_order import place_jobs
from outbox_consumers.errors import UsageError
from outbox_consumers.handlers.routes import Route
from outbox_consumers.inbox import job_tables


def leased(position: int) -> LeasedJob:
    return LeasedJob(position, 1, 0, False, 0, Event("Work", key="k"))


# -- Queues --------------------------------------------------------------------------------------------


def test_the_first_of_an_idle_queue_becomes_its_head() -> None:
    decided = place_jobs([(1, b"a"), (2, b"b"), (3, b"a")], {}, set())
    assert decided.heads == [1, 2]
    assert decided.behind == [3]


def test_jobs_are_set_to_waiting_only_behind_a_locked_head() -> None:
    decided = place_jobs([(5, b"locked"), (6, b"ending"), (7, b"locked")], {b"locked": 1, b"ending": 2}, {1})
    assert decided.heads == []
    assert decided.behind == [5, 7]


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=30),
    st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.integers(-9, -1)),
    st.sets(st.integers(-9, -1)),
)
def test_no_queue_ever_gets_a_second_head(
    queues: list[bytes], heads: dict[bytes, int], locked: set[int]
) -> None:
    new = list(enumerate(queues, start=1))
    decided, queue = place_jobs(new, heads, locked), dict(new)
    made = [queue[position] for position in decided.heads]
    assert len(made) == len(set(made))
    assert not set(made) & set(heads)
    for position in decided.behind:
        assert queue[position] in made or heads[queue[position]] in locked
    assert len(decided.heads) + len(decided.behind) == sum(
        1 for name in queues if name not in heads or heads[name] in locked
    )


def test_a_queue_is_a_topic_and_a_key() -> None:
    assert queue_of(Event("Work", key="")) is None
    assert queue_of(Event("Work", key="k", topic="orders")) == b"orders\0k"
    long_one, other = ("x" * 300, "x" * 301)
    assert len(queue_of(Event("Work", key=long_one)) or b"") == 32
    assert queue_of(Event("Work", key=long_one)) != queue_of(Event("Work", key=other))


# -- Jobs ----------------------------------------------------------------------------------------------


def test_a_job_becomes_the_row_of_its_event() -> None:
    job = Job(
        "Work", {"n": 1}, key="k", id=(one := uuid7()), priority=3, run_at=datetime(2026, 1, 1, tzinfo=UTC)
    )
    row: dict[str, Any] = columns("billing", [job.event()], [job])
    assert row["queues"] == [b"\0k"]
    assert row["priorities"] == [3]
    assert row["due"] == [job.run_at]
    assert row["types"] == ["Work"]
    assert row["payloads"] == [b'{"n": 1}']
    assert one.bytes in row["ids"]


@pytest.mark.parametrize(
    "wrong",
    [{"type": ""}, {"type": "a\0b"}, {"priority": 1 << 15}, {"key": 5}, {"run_at": datetime(2026, 1, 1)}],
)
def test_an_invalid_job_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Job(**({"type": "Work"} | wrong))


def test_a_job_without_an_id_is_always_new() -> None:
    job = Job("Work")
    assert job.event().id != job.event().id


@pytest.mark.parametrize(
    "wrong", [{"lease": 0.5}, {"grace": -1}, {"keep": -1}, {"name": ""}, {"name": "a\0"}]
)
def test_invalid_settings_of_a_durable_inbox_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DurableInbox(**({"name": "billing"} | wrong))


def test_topics_need_kafka() -> None:
    with pytest.raises(UsageError, match=r"bootstrap\.servers"):
        DurableInbox("billing", topics=["orders"])
    with pytest.raises(UsageError, match="no topics"):
        DurableInbox("billing").receive()
    with pytest.raises(UsageError, match="no handlers"):
        DurableInbox("billing").run()
    with pytest.raises(UsageError, match="at least one"):
        DurableInbox("billing").run(workers=0)


# -- In progress ---------------------------------------------------------------------------------------


def test_jobs_given_back_are_not_run() -> None:
    jobs = JobsInProgress()
    jobs.add([leased(n) for n in range(3)])
    job = jobs.take_next()
    assert job is not None
    jobs.begin(RunningJob(job, 10.0, 5.0, 3))
    assert not jobs.is_slow(10.5, 1.0)
    assert jobs.is_slow(11.0, 1.0)
    assert [j.position for j in jobs.take_waiting()] == [1, 2]
    assert jobs.take_next() is None


def test_handled_jobs_are_ended_once() -> None:
    jobs = JobsInProgress()
    jobs.add_handled(leased(1))
    jobs.add_handled(leased(2))
    assert [j.position for j in jobs.take_handled()] == [1, 2]
    assert jobs.take_handled() == []


def test_the_estimated_duration_falls_slowly_after_a_slow_call() -> None:
    route = Route("Work", print)
    assert route.seconds == float("inf")
    route.note_duration(0.001)
    assert route.seconds == 0.001
    route.note_duration(1.0)
    for _ in range(40):
        route.note_duration(0.001)
        assert route.seconds > 0.01
    for _ in range(40):
        route.note_duration(0.001)
    assert route.seconds == 0.001


def test_a_job_is_overdue_at_its_time_limit() -> None:
    jobs = JobsInProgress()
    jobs.begin(RunningJob(leased(1), 10.0, 5.0, 3))
    assert jobs.overdue(14.9) is None
    assert jobs.overdue(15.0) is not None
    jobs.end()
    assert jobs.overdue(99.0) is None
    jobs.begin(RunningJob(leased(1), 10.0, None, 3))
    assert jobs.overdue(1e9) is None
    assert jobs.take_waiting() == []


# -- Names ---------------------------------------------------------------------------------------------


def test_names_of_indexes_are_never_truncated() -> None:
    one, other = "s." + "x" * 60 + "1", "s." + "x" * 60 + "2"
    names = [*job_tables.index_names(one), *job_tables.index_names(other), *job_tables.index_names("inbox")]
    assert len(names) == len(set(names))
    assert all(len(name.encode()) < 64 for name in names)
    assert job_tables.index_names("inbox")[0] == "inbox_job_ready"
    assert len(job_tables.channel("x" * 100, "y" * 100)) < 64
