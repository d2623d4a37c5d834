"""An outage of the database: when to try the next connection. All events wait meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from outbox_consumers.handlers.retry import TRANSIENT
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and random numbers, as arguments so that tests can replace them."""

    now: Callable[[], float]  # monotonic, in seconds
    sleep: Callable[[float], None]
    random: Callable[[], float]  # in [0, 1)


class Outage:
    """The current outage of the database, from the first failed attempt to the first success. False: none."""

    def __init__(self, counters: ConsumerCounters, clock: Clock) -> None:
        self._counters = counters
        self._clock = clock
        self._attempts = 0
        self.retry_at = 0.0  # monotonic

    def __bool__(self) -> bool:
        """Return whether the last attempt failed."""
        return self._attempts > 0

    def waiting(self) -> bool:
        """Return whether it is too early for the next attempt."""
        return self._clock.now() < self.retry_at

    def note_failure(self, error: Exception) -> float:
        """Count a failed attempt and return when the next one is due (monotonic clock)."""
        self._counters.transient += 1
        self._attempts += 1
        delay = TRANSIENT.delay(self._attempts, self._clock.random())
        self.retry_at = self._clock.now() + delay
        log.warning("no database connection, again in %.1f s: %s", delay, " ".join(str(error).split()))
        return self.retry_at

    def end(self) -> None:
        """Note a success."""
        self._attempts = 0
