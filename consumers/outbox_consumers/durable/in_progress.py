"""The jobs that a worker has leased: waiting, running, or handled but not yet ended in the database.

Shared by the worker's two threads: one calls the handlers, the other renews the lease.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from outbox_consumers.durable.jobs import LeasedJob


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The job whose handler is running, since when, and its time limit in seconds (None: unlimited)."""

    job: LeasedJob
    since: float  # monotonic clock
    limit: float | None
    max_attempts: int


class JobsInProgress:
    """The leased jobs of one worker. Each method is atomic, so a job is either run or given back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[LeasedJob] = deque()
        self._running: RunningJob | None = None
        self._handled: list[LeasedJob] = []

    def add(self, jobs: Sequence[LeasedJob]) -> None:
        """Add leased jobs behind those already waiting."""
        with self._lock:
            self._waiting.extend(jobs)

    def take_next(self) -> LeasedJob | None:
        """Remove and return the next waiting job; only the caller may handle it now."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def begin(self, running: RunningJob) -> None:
        """Record the job whose handler is about to run."""
        with self._lock:
            self._running = running

    def end(self) -> None:
        """Record that no handler is running."""
        with self._lock:
            self._running = None

    def add_handled(self, job: LeasedJob) -> None:
        """Add a job whose handler wrote nothing: its end may share a transaction with others."""
        with self._lock:
            self._handled.append(job)

    def take_handled(self) -> list[LeasedJob]:
        """Remove and return the handled jobs, which the caller has to end."""
        with self._lock:
            jobs, self._handled = self._handled, []
            return jobs

    def take_waiting(self) -> list[LeasedJob]:
        """Remove and return the waiting jobs."""
        with self._lock:
            jobs = list(self._waiting)
            self._waiting.clear()
            return jobs

    def running_seconds(self, now: float) -> float:
        """Return the seconds since the running handler was called; 0 if none is running."""
        running = self._running
        return 0.0 if running is None else now - running.since

    def is_slow(self, now: float, limit: float) -> bool:
        """Return whether a handler has been running for `limit` seconds or more."""
        return self.running_seconds(now) >= limit

    def overdue(self, now: float) -> RunningJob | None:
        """Return the running job if it has exceeded its time limit."""
        running = self._running
        if running is None or running.limit is None or now - running.since < running.limit:
            return None
        return running
