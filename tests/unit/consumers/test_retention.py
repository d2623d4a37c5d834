"""How long the inbox remembers is derived, never guessed."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from uuid_utils.compat import uuid7

from outbox_consumers.errors import RefusedWindow
from outbox_consumers.inbox.retention import Partition, day_of, first_id, is_stale, plan, window_of

NOW = datetime(2026, 3, 10, 15, 30, tzinfo=UTC)
DAY = timedelta(days=1)


def part(day: date | None) -> Partition:
    return Partition(f"inbox_{day}", day, 0, 0)


def test_an_id_falls_into_the_day_it_was_made() -> None:
    assert day_of(first_id(NOW)) == NOW.date()
    assert first_id(NOW).bytes < first_id(NOW + timedelta(milliseconds=1)).bytes
    made = uuid7()
    assert first_id(datetime.now(UTC) - DAY) < made < first_id(datetime.now(UTC) + DAY)


def test_only_ids_that_carry_a_time_can_be_too_old() -> None:
    window = first_id(NOW).bytes
    assert is_stale(UUID("01000000-0000-7000-8000-000000000000").bytes, window)
    assert not is_stale(UUID("01000000-0000-4000-8000-000000000000").bytes, window)
    assert not is_stale(uuid7().bytes, b"")
    assert not any(is_stale(uuid4().bytes, window) for _ in range(1000))


def test_the_window_is_the_longest_retention_and_a_day() -> None:
    assert window_of({"a": 7 * DAY, "b": 3 * DAY}, None) == 8 * DAY
    assert window_of({"a": 7 * DAY}, 30 * DAY) == 30 * DAY
    assert window_of({"a": 7 * DAY, "b": None}, None) is None


def test_a_shorter_window_is_refused() -> None:
    with pytest.raises(RefusedWindow, match=r"7 days is shorter than topic a keeps its records \(8 days"):
        window_of({"a": 7 * DAY, "b": DAY}, 7 * DAY)
    with pytest.raises(RefusedWindow, match="topic b keeps its records for ever"):
        window_of({"a": DAY, "b": None}, 30 * DAY)


def test_future_days_are_created_and_days_before_the_window_dropped() -> None:
    there = [part(None), *(part(NOW.date() - n * DAY) for n in range(-2, 12))]
    todo = plan(there, NOW, 8 * DAY)
    assert todo.create == tuple(NOW.date() + n * DAY for n in range(3, 8))
    # The 2nd of March ends at midnight; 8 days before now is 15:30 of that day.
    assert [p.day for p in todo.drop] == [NOW.date() - n * DAY for n in (9, 10, 11)]
    assert todo.before == NOW - 8 * DAY


def test_nothing_is_dropped_when_a_topic_keeps_everything() -> None:
    assert plan([part(date(1999, 1, 1))], NOW, None).drop == ()
