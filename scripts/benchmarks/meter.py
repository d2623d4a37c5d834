"""Counts the events that a consumer handles and computes their rate."""

from __future__ import annotations

import time
from collections.abc import Callable


class Meter:
    """Measures from the first count to the one that reaches `goal`.

    The first count is left out: those events were fetched while the group was still forming.
    """

    def __init__(self, goal: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._goal = goal
        self._clock = clock
        self._first = 0
        self._counted = 0
        self._started = 0.0
        self._ended = 0.0

    def count(self, events: int) -> None:
        """Add events that were handled."""
        if self._counted == 0:
            self._first, self._started = events, self._clock()
        self._counted += events
        if self.done and not self._ended:
            self._ended = self._clock()

    @property
    def done(self) -> bool:
        """Whether all events were handled."""
        return self._counted >= self._goal

    @property
    def rate(self) -> float:
        """Events per second."""
        return (self._counted - self._first) / (self._ended - self._started)
