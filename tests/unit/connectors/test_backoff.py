"""Exponential backoff: where it starts, how it grows, where it ends, how it is spread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_connectors import backoff


def test_the_delay_doubles_up_to_its_limit() -> None:
    assert [backoff.delay(n, 0.5, 5) for n in (1, 2, 3, 4, 5, 6)] == [0.5, 1, 2, 4, 5, 5]


def test_another_factor() -> None:
    assert [backoff.delay(n, 2, 60, factor=3) for n in (1, 2, 3, 4)] == [2, 6, 18, 54]


@pytest.mark.parametrize("attempt", [1_025, 10**6])
def test_any_number_of_attempts_ends_at_the_limit(attempt: int) -> None:
    assert backoff.delay(attempt, 0.1, 30) == 30
    assert backoff.delay(attempt, 10**9, 30, factor=10**9) == 30


def test_jitter_spreads_the_delay_to_both_sides() -> None:
    assert backoff.delay(1, 10, 60, jitter=0.25, random=0.0) == 7.5
    assert backoff.delay(1, 10, 60, jitter=0.25, random=0.5) == 10
    assert backoff.spread(10, 0.25, 0.9999) == pytest.approx(12.5, abs=0.01)


@given(st.integers(1, 3000), st.floats(0.001, 100), st.floats(0.001, 100), st.floats(0, 0.99))
def test_the_delay_never_shrinks_and_stays_within_its_bounds(
    attempt: int, first: float, longest: float, random: float
) -> None:
    delay = backoff.delay(attempt, first, longest, jitter=0.3, random=random)
    assert 0.69 * min(first, longest) <= delay <= 1.31 * longest
    assert backoff.delay(attempt, first, longest) <= backoff.delay(attempt + 1, first, longest)
