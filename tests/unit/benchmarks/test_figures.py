"""The arithmetic of the benchmark's table."""

from __future__ import annotations

import pytest

from benchmarks.figures import Figure, Goal, lines, percentile
from benchmarks.meter import Meter
from benchmarks.rounds import rotated
from benchmarks.sizes import DEFAULT, LONG, QUICK
from benchmarks.table import durations, number, rendered


def figure(variant: str, *rounds: float, reference: bool = False) -> Figure:
    return Figure("work", variant, rounds, "events/s", more_is_better=True, reference=reference)


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (50, 99, 100)
    assert percentile([7.0], 1) == 7
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 50)


def test_a_figure_knows_its_median_and_its_best_round() -> None:
    more = figure("a", 10, 30, 20)
    less = Figure("work", "a", (10, 30, 20), "ms", more_is_better=False)
    assert (more.median, more.best, less.median, less.best) == (20, 30, 20, 10)


def test_the_ratio_is_taken_round_by_round() -> None:
    # The second round was disturbed: both variants took ten times as long, and the ratio does not move.
    reference, ours = figure("theirs", 100, 10, 100, reference=True), figure("ours", 200, 20, 200)
    first, second = lines([reference, ours], [])
    assert (first.ratio, second.ratio) == (None, 2)


def test_the_ratio_of_unequal_rounds_is_that_of_the_medians() -> None:
    assert lines([figure("a", 10, 20, 30, reference=True), figure("b", 40)], [])[1].ratio == 2


@pytest.mark.parametrize(
    ("goal", "verdict"),
    [
        (Goal("work", "ours", at_least=2), "met"),
        (Goal("work", "ours", at_least=2.1), "missed"),
        (Goal("work", "ours", at_most=0.1), "missed"),
        (Goal("work", "ours", at_least=20, absolute=True), "met"),
        (Goal("work", "ours", at_most=19, absolute=True), "missed"),
        (Goal("other work", "ours", at_most=19), ""),
    ],
)
def test_verdict(goal: Goal, verdict: str) -> None:
    assert lines([figure("a", 10, reference=True), figure("ours", 20)], [goal])[1].verdict == verdict


def test_table_names_the_work_once() -> None:
    text = rendered(lines([figure("a", 1234.5, reference=True), figure("b", 0.0123)], []))
    assert text.count("work  ") == 2  # the heading and the first line
    assert "1,234" in text
    assert "0.0123" in text


def test_number() -> None:
    assert [number(n) for n in (0.14159, 14.159, 141.59, 14159.4)] == ["0.142", "14.2", "142", "14,159"]


def test_the_durations_are_one_line() -> None:
    assert durations({"relay": 61.4, "total": 300.0}) == "seconds: relay 61, total 300"


def test_what_takes_minutes_is_measured_by_the_long_size_only() -> None:
    assert (LONG.watch_samples, LONG.inbox_rows) == (10_000, 10_000_000)
    for size in (QUICK, DEFAULT):
        assert (size.watch_samples, size.inbox_rows) == (0, 1_000_000)


def test_rotated() -> None:
    assert [rotated(["a", "b", "c"], by) for by in (0, 1, 5)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]


def test_meter_leaves_out_what_came_first() -> None:
    ticks = iter([10.0, 12.0])
    meter = Meter(30, clock=lambda: next(ticks))
    for _ in range(3):
        meter.count(10)
    assert meter.done
    assert meter.rate == 10
