"""Aggregate types whose topic cannot be written now: their rows wait, rows of other types go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FIRST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 60.0


@dataclass(slots=True)
class UnwritableTopics:
    """The paused aggregate types: until when, and for how long the next time."""

    _until: dict[str, float] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)

    def pause(self, aggregate_type: str, now: float) -> None:
        """Pause the rows of a type, longer each time."""
        seconds = min(LONGEST_SECONDS, self._seconds.get(aggregate_type, FIRST_SECONDS / 2) * 2)
        self._seconds[aggregate_type] = seconds
        self._until[aggregate_type] = now + seconds

    def now(self, now: float) -> tuple[str, ...]:
        """List the types that are paused at this time."""
        return tuple(name for name, until in self._until.items() if now < until)
