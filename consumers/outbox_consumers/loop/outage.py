"""Whether the database is there, and when to look again; all events wait meanwhile, whatever they are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from outbox_consumers.handlers.retry import TRANSIENT, is_transient
from outbox_consumers.handlers.session import ConsumerSession
from outbox_consumers.processes.counters import ConsumerCounters

log = logging.getLogger("outbox_consumers")


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and chance, so that tests can have their own."""

    now: Callable[[], float]  # monotonic, in seconds
    sleep: Callable[[float], None]
    random: Callable[[], float]  # in [0, 1)


class Outage:
    """The outage of the database, from the first error to the first success."""

    def __init__(self, session: ConsumerSession, counters: ConsumerCounters, clock: Clock) -> None:
        self._session = session
        self._counters = counters
        self._clock = clock
        self._tries = 0
        self.retry_at = 0.0

    def __bool__(self) -> bool:
        """Say whether the last try failed."""
        return self._tries > 0

    def waiting(self) -> bool:
        """Say whether it is too early for the next try."""
        return self._clock.now() < self.retry_at

    def explains(self, error: Exception) -> bool:
        """Say whether the error means that no event can succeed, since the connection is gone."""
        return is_transient(error) and not self._session.usable()

    def note_failure(self, error: Exception) -> float:
        """Note a failed try and say when the next one is due (monotonic clock)."""
        self._counters.transient += 1
        self._tries += 1
        delay = TRANSIENT.delay(self._tries, self._clock.random())
        self.retry_at = self._clock.now() + delay
        log.warning("no database connection, again in %.1f s: %s", delay, " ".join(str(error).split()))
        return self.retry_at

    def end(self) -> None:
        """Note a success."""
        self._tries = 0
