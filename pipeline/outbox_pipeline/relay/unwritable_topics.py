"""Aggregate types whose topic cannot be written now: their rows wait, rows of other types go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from outbox_connectors import backoff

FIRST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 60.0


@dataclass(slots=True)
class UnwritableTopics:
    """The paused aggregate types: until when, and for how long the next time."""

    _until: dict[str, float] = field(default_factory=dict)
    _attempts: dict[str, int] = field(default_factory=dict)

    def pause(self, aggregate_type: str, now: float) -> None:
        """Pause the rows of a type, longer each time."""
        attempt = self._attempts[aggregate_type] = self._attempts.get(aggregate_type, 0) + 1
        self._until[aggregate_type] = now + backoff.delay(attempt, FIRST_SECONDS, LONGEST_SECONDS)

    def now(self, now: float) -> tuple[str, ...]:
        """List the types that are paused at this time."""
        return tuple(name for name, until in self._until.items() if now < until)
