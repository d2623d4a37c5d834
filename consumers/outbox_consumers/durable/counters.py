"""Counters of one worker of a durable inbox."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class WorkCounters:
    """Counts since the worker was created."""

    taken: int = 0  # jobs leased
    done: int = 0  # finished, effects committed
    failed: int = 0  # attempts that raised
    transient: int = 0  # attempts that ended with a transient database error
    dead: int = 0  # rejected, or failed in the last attempt
    timeouts: int = 0  # attempts that took longer than the timeout of their handler
    fenced: int = 0  # handled, but rolled back since the lease was lost
    given_back: int = 0  # returned to the queue, not handled
    rescued: int = 0  # leased jobs of dead workers, made ready again
    unknown: int = 0  # given back since this worker has no handler for their type

    def document(self) -> dict[str, int]:
        """Return the counters by name, for JSON and metrics."""
        return asdict(self)
