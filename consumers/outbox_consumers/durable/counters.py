"""What a worker has done, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class WorkCounters:
    """Counts since the worker started."""

    taken: int = 0  # jobs leased
    done: int = 0  # finished, effects committed
    failed: int = 0  # attempts that raised
    transient: int = 0  # database errors that pass by themselves
    dead: int = 0  # given up
    timeouts: int = 0  # attempts that took longer than their handler may
    fenced: int = 0  # handled, but the lease was lost: effects rolled back
    given_back: int = 0  # leased, not begun, left to others
    rescued: int = 0  # jobs of dead workers made ready again
    unknown: int = 0  # left alone, since no handler is known here

    def document(self) -> dict[str, int]:
        """Give the counters by name, for JSON and metrics."""
        return asdict(self)
