"""How long is left: replayed on synthetic WAL, aware of checkpoints, honest about a short past."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from outbox_pipeline.watch.facts import facts_of
from outbox_pipeline.watch.forecast import (
    Rates,
    checkpoints,
    earliest_seconds,
    expected_seconds,
    forecasts,
    rates_of,
)
from outbox_pipeline.watch.history import BUCKET_SECONDS, DAY_SECONDS, Bucket, Point, remember
from outbox_pipeline.watch.sample import Slot
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import End, SecondsLeft
from watch_samples import (
    HEALTHY,
    MIB,
    NOW,
    SERVER,
    SLOT,
    WAL,
    history_of,
    later,
    postgres_of,
    with_server,
    with_settings,
    with_slot,
)

HOUR = 3600.0
STEP = 60.0  # the synthetic load's resolution
Shape = Callable[[float], float]


def steady(_: float) -> float:
    return 1.0


def diurnal(second: float) -> float:
    return 1.0 + 0.9 * math.sin(2 * math.pi * (second / DAY_SECONDS - 0.25))


def hourly_batch(second: float) -> float:
    return 10.0 if second % HOUR < 6 * 60 else 0.3


def nightly_batch(second: float) -> float:
    return 20.0 if 2 * HOUR <= second % DAY_SECONDS < 3.5 * HOUR else 0.5


SHAPES: dict[str, Shape] = {f.__name__: f for f in (steady, diurnal, hourly_batch, nightly_batch)}


def written(shape: Shape, start: float, seconds: float, noise: random.Random) -> list[float]:
    """Bytes of each minute."""
    steps = int(seconds / STEP)
    return [max(0.0, shape(start + n * STEP) * noise.gauss(1, 0.15)) * STEP * MIB for n in range(steps)]


def past_of(minutes: list[float], start: float) -> Rates:
    """What a watch that looked on all the time would remember."""
    buckets: dict[int, float] = {}
    for number, amount in enumerate(minutes):
        bucket = int((start + number * STEP) // BUCKET_SECONDS)
        buckets[bucket] = buckets.get(bucket, 0.0) + amount
    newest = sorted(buckets)[-DAY_SECONDS // BUCKET_SECONDS :]
    return Rates(
        buckets=tuple(Bucket(n, BUCKET_SECONDS, buckets[n]) for n in newest),
        recent=sum(minutes[-2:]) / (2 * STEP),
        seconds=len(newest) * BUCKET_SECONDS,
    )


def truth(minutes: list[float], headroom: float) -> float:
    total = 0.0
    for number, amount in enumerate(minutes):
        if total + amount >= headroom:
            return number * STEP + (headroom - total) / amount * STEP
        total += amount
    raise AssertionError("the synthetic future is too short")


def replay(shape: Shape, days: float, runs: int = 40) -> list[tuple[float, float]]:
    """Forecast at random moments with random headroom: (earliest, expected) over the truth."""
    noise = random.Random(shape.__name__)
    ratios = []
    for _ in range(runs):
        start = 20_000 * float(DAY_SECONDS) + noise.uniform(0, DAY_SECONDS) // STEP * STEP
        before = written(shape, start, days * DAY_SECONDS, noise)
        now = start + len(before) * STEP
        after = written(shape, now, 4 * DAY_SECONDS, noise)
        headroom = noise.uniform(0.01, 0.6) * sum(after)
        rates = past_of(before, start)
        real = truth(after, headroom)
        earliest = earliest_seconds(rates, now, headroom)
        expected = expected_seconds(rates, now, headroom)
        assert earliest is not None
        assert expected is not None
        assert earliest <= expected
        ratios.append((earliest / real, expected / real))
    return ratios


@pytest.mark.parametrize("name", SHAPES)
def test_earliest_is_never_much_too_optimistic(name: str) -> None:
    """With a day of history: 0 % of the forecasts promise more than 1.1 times the time there was."""
    ratios = replay(SHAPES[name], 1.0)
    optimistic = [earliest for earliest, _ in ratios if earliest > 1.1]
    earliest = sorted(e for e, _ in ratios)
    expected = sorted(e for _, e in ratios)
    middle = len(ratios) // 2
    print(
        f"{name:14} earliest/true median {earliest[middle]:.2f} max {earliest[-1]:.2f}, "
        f"expected/true median {expected[middle]:.2f} ({expected[0]:.2f} to {expected[-1]:.2f}), "
        f"earliest too optimistic by more than 1.1: {100 * len(optimistic) / len(ratios):.0f} %"
    )
    assert not optimistic
    assert 0.8 <= expected[middle] <= 1.2


def test_a_load_never_seen_before_is_believed() -> None:
    start = 20_000.0 * DAY_SECONDS
    rates = past_of([MIB * STEP] * 1440, start)
    surge = replace(rates, recent=50.0 * MIB)
    now = start + DAY_SECONDS
    assert expected_seconds(surge, now, 5000.0 * MIB) == pytest.approx(100)
    assert earliest_seconds(surge, now, 5000.0 * MIB) == pytest.approx(100)


def test_a_short_past_says_so_and_speaks_of_the_rate_of_now() -> None:
    rates = past_of([MIB * STEP] * 10, 0.0)
    assert not rates.whole_day
    assert rates.seconds == 600
    assert expected_seconds(rates, 600, 600.0 * MIB) == pytest.approx(600)


def bursts(period: float) -> Callable[[float], float]:
    """Say how much is written up to a second: a megabyte each, and as much again at once in each period."""
    return lambda second: MIB * (second + period * (second // period))


@pytest.mark.parametrize("period", [30.0, 60.0, 300.0])
def test_bursts_are_foreseen_by_a_short_past(period: float) -> None:
    """Full pages after each checkpoint, a vacuum each minute: watched for a few minutes, every 5 seconds."""
    noise = random.Random(period)
    position, misses = bursts(period), []
    for _ in range(200):
        now = noise.uniform(2 * period + 120, 3000)
        looks = [now - 5.0 * n for n in range(int((2 * period + 120) / 5), -1, -1)]
        rates = rates_of((), [Point(at, wal=round(position(at))) for at in looks])
        headroom = noise.uniform(20, 1000) * MIB
        real = next(t / 10 for t in range(100_000) if position(now + t / 10) - position(now) >= headroom)
        earliest = earliest_seconds(rates, now, headroom)
        expected = expected_seconds(rates, now, headroom)
        assert earliest is not None
        assert expected is not None
        misses.append((earliest - real, expected - real))
    latest = max(misses)[0]
    print(f"a burst each {period:.0f} s: earliest was {latest:.0f} s too late at most")
    assert latest <= 15.0
    # A burst comes a period sooner or later than evenly: nobody knows the phase.
    assert all(abs(miss) <= 1.2 * period + 15 for _, miss in misses)


def test_a_clock_that_was_set_back_breaks_nothing() -> None:
    looks = [0.0, 50.0, 100.0, 200.0, 150.0, 150.0]
    rates = rates_of((), [Point(at, wal=n * 100 * MIB) for n, at in enumerate(looks)])
    assert earliest_seconds(rates, 150.0, 50.0 * MIB) is not None


@pytest.mark.parametrize("headroom", [0.0, -5.0])
def test_nothing_left_is_zero(headroom: float) -> None:
    rates = past_of([MIB * STEP] * 10, 0.0)
    assert expected_seconds(rates, 600, headroom) == 0
    assert earliest_seconds(rates, 600, headroom) == 0


def test_no_wal_means_no_end_in_sight() -> None:
    assert expected_seconds(Rates((), None, 0.0), 0.0, 1.0) is None
    assert earliest_seconds(Rates((), 0.0, 0.0), 0.0, 1.0) is None
    assert expected_seconds(past_of([0.0] * 1440, 0.0), float(DAY_SECONDS), 1.0) is None


# --- checkpoints -------------------------------------------------------------------------------


def test_checkpoints_come_by_time_or_by_distance() -> None:
    # 1024 MiB / 1.9 = 539 MiB between checkpoints; 10 MiB are written since the last one.
    slow = checkpoints(SERVER, 0.1 * MIB, None)
    assert slow.first_start == pytest.approx(240)  # 300 s, of which 60 have passed
    fast = checkpoints(SERVER, 10.0 * MIB, None)
    assert fast.first_start == pytest.approx((1024 / 1.9 - 10) / 10)
    assert fast.cycle == pytest.approx(1024 / 1.9 / 10)


def test_the_end_after_the_cap_is_passed_is_the_one_that_counts() -> None:
    plan = checkpoints(SERVER, None, 20.0)
    assert plan.end_after(0) == pytest.approx(260)
    assert plan.end_after(260) == pytest.approx(260)
    assert plan.end_after(261) == pytest.approx(560)


def still(seconds: int, rate: int, **changes: object) -> SecondsLeft:
    """Nobody consumes, WAL grows by `rate` bytes a second, watched for some seconds."""
    samples = []
    for second in range(0, seconds + 1, 5):
        sample = later(HEALTHY, second, wal=rate * second)
        safe = 2000 * MIB - rate * second
        samples.append(with_slot(sample, active_pid=None, safe_wal_bytes=safe))
    *past, present = samples
    present = with_server(present, **changes) if changes else present
    facts = facts_of(history_of([*past, present]), present, Thresholds())
    assert facts.left is not None
    return facts.left


def test_invalidation_waits_for_a_checkpoint() -> None:
    left = still(60, 10 * MIB)
    assert left.end is End.INVALIDATION
    passed = (2000 - 600) / 10
    assert left.earliest == pytest.approx(passed, rel=0.05)
    assert left.expected is not None
    assert passed <= left.expected <= passed + 1024 / 1.9 / 10 + 1
    assert left.history_seconds == pytest.approx(60)


def test_a_cap_that_is_passed_long_before_the_checkpoint_leaves_until_then() -> None:
    left = still(60, 30 * MIB, redo_position=WAL + 1800 * MIB, checkpoint_at=NOW + 55)
    assert left.earliest == pytest.approx((1024 / 1.9) / 30, rel=0.1)


def test_without_wal_nothing_is_lost() -> None:
    left = still(60, 0)
    assert (left.earliest, left.expected) == (None, None)


def test_the_nearer_end_is_shown() -> None:
    samples = [with_slot(later(HEALTHY, s, wal=10 * MIB * s), active_pid=None) for s in range(0, 60, 5)]
    *past, present = samples
    history = history_of(past)
    full = replace(present, disk_free_bytes=500 * MIB)
    left = facts_of(remember(history, full), full, Thresholds()).left
    assert left is not None
    assert left.end is End.DISK
    empty = replace(present, disk_free_bytes=10**15)
    left = facts_of(remember(history, empty), empty, Thresholds()).left
    assert left is not None
    assert left.end is End.INVALIDATION


def test_without_cap_only_the_disk_ends_it() -> None:
    sample = with_settings(with_slot(HEALTHY, safe_wal_bytes=None), slot_cap_bytes=None)
    assert forecasts((), (), sample, postgres_of(sample).slots[0]) == ()
    known = replace(sample, disk_free_bytes=1)
    assert [f.end for f in forecasts((), (), known, postgres_of(known).slots[0])] == [End.DISK]


@pytest.mark.parametrize(
    "slot",
    [
        replace(SLOT, wal_status="lost"),
        replace(SLOT, wal_status=None, safe_wal_bytes=-(10**12)),  # never reserved: a bogus number
        replace(SLOT, wal_status="reserved", invalidation_reason="idle_timeout"),
    ],
)
def test_slots_that_keep_nothing_have_no_end(slot: Slot) -> None:
    assert forecasts((), (), HEALTHY, slot) == ()


def test_a_standby_shows_a_wrong_constant_and_is_not_believed() -> None:
    assert forecasts((), (), with_server(HEALTHY, in_recovery=True), SLOT) == ()


def test_an_idle_timeout_is_an_end_of_its_own() -> None:
    sample = with_settings(
        with_slot(HEALTHY, active_pid=None, inactive_seconds=100.0), idle_slot_timeout=600.0
    )
    ends = forecasts((), (), sample, postgres_of(sample).slots[0])
    assert any(end.earliest == pytest.approx(500) and end.end is End.INVALIDATION for end in ends)
    used = with_slot(sample, active_pid=100)
    assert not any(end.earliest == 500 for end in forecasts((), (), used, postgres_of(used).slots[0]))
