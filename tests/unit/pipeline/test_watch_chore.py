"""What the watch does beside watching, on a schedule."""

from __future__ import annotations

from collections.abc import Callable

from outbox_pipeline.errors import Failed
from outbox_pipeline.watch.scheduled import FIRST_SECONDS, ScheduledRuns, repeat


def done(
    *outcomes: Callable[[], object], every_seconds: float = 3600.0
) -> tuple[ScheduledRuns, list[str], list[float]]:
    """Let each outcome happen at one time, then stop."""
    said: list[str] = []
    waits: list[float] = []
    runs, left = ScheduledRuns(), list(outcomes)
    repeat(
        lambda: left.pop(0)(),
        "tidy",
        every_seconds=every_seconds,
        stopped=lambda: not left,
        wait=waits.append,
        clock=lambda: 1000.0,
        report=said.append,
        runs=runs,
    )
    return runs, said, waits


def _refuse() -> object:
    raise Failed("no right", where="table outbox", remedy="grant it")


def _break() -> object:
    raise ZeroDivisionError("a bug\nof ours")


def test_it_is_done_soon_and_then_on_schedule() -> None:
    runs, said, waits = done(lambda: "3 rows", lambda: "")
    assert (runs.done, runs.failed, runs.last_done_at) == (2, 0, 1000.0)
    assert said == ["tidy: 3 rows"]
    assert waits == [FIRST_SECONDS, 3600.0, 3600.0]


def test_a_short_interval_is_not_waited_for_longer_at_first() -> None:
    assert done(lambda: "", every_seconds=2.0)[2] == [2.0, 2.0]


def test_a_failure_of_any_kind_is_a_line_and_a_number_and_the_next_time_comes() -> None:
    runs, said, _ = done(_refuse, _break, lambda: "")
    assert (runs.done, runs.failed) == (1, 2)
    assert said == [
        "tidy failed: table outbox: no right; grant it",
        "tidy failed: ZeroDivisionError: a bug of ours",
    ]


def test_nothing_is_done_after_the_end() -> None:
    assert done()[0] == ScheduledRuns()
