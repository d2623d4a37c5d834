"""Aggregate types whose topic cannot be written to at the moment: their rows wait, others go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FIRST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 60.0


@dataclass(slots=True)
class UnwritableTopics:
    """What is parked, until when, and for how long the next time."""

    _until: dict[str, float] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)

    def park(self, aggregate_type: str, now: float) -> None:
        """Let the rows of a type wait, longer each time."""
        seconds = min(LONGEST_SECONDS, self._seconds.get(aggregate_type, FIRST_SECONDS / 2) * 2)
        self._seconds[aggregate_type] = seconds
        self._until[aggregate_type] = now + seconds

    def parked(self, now: float) -> tuple[str, ...]:
        """List the types that have to wait now."""
        return tuple(name for name, until in self._until.items() if now < until)
