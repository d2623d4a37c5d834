"""When the next tick is due, and how long a ticker waits after a failure."""

from __future__ import annotations

import pytest

from outbox_pipeline.watch import heartbeat


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 8.0), (6, 10.0), (1000, 10.0)]
)
def test_pause_doubles_up_to_the_interval(failures: int, seconds: float) -> None:
    assert heartbeat.pause_after(failures, 10.0) == seconds


def test_pause_is_never_longer_than_half_a_minute() -> None:
    assert heartbeat.pause_after(50, 3600.0) == 30.0


def test_pause_of_a_quick_ticker_stays_above_zero() -> None:
    assert heartbeat.pause_after(9, 0.1) == 0.5


def test_ticks_keep_their_grid() -> None:
    assert heartbeat.next_due(due=100.0, now=100.2, interval_seconds=10.0) == 110.0


def test_missed_ticks_are_left_out() -> None:
    """After 100 s of a stopped server one tick is sent, not ten."""
    assert heartbeat.next_due(due=100.0, now=200.5, interval_seconds=10.0) == 210.5
