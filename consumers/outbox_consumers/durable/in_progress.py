"""What a worker has in hand: jobs leased but not begun, the one at work, and those handled but not ended.

Shared by the worker's two threads, the one that handles and the one that keeps the lease.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from outbox_consumers.durable.jobs import LeasedJob


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The job at work: since when, and how long it may take at most (None: for ever)."""

    job: LeasedJob
    since: float  # monotonic clock
    limit: float | None
    max_attempts: int


class JobsInProgress:
    """The jobs in hand. Each method is atomic: a job is run or given back, never both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[LeasedJob] = deque()
        self._running: RunningJob | None = None
        self._handled: list[LeasedJob] = []

    def add(self, jobs: Sequence[LeasedJob]) -> None:
        """Take leased jobs in hand, behind those already there."""
        with self._lock:
            self._waiting.extend(jobs)

    def take_next(self) -> LeasedJob | None:
        """Take the next job out; it is this thread's from now on."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def begin(self, running: RunningJob) -> None:
        """Note which job is at work."""
        with self._lock:
            self._running = running

    def end(self) -> None:
        """Note that no job is at work."""
        with self._lock:
            self._running = None

    def add_handled(self, job: LeasedJob) -> None:
        """Keep a job whose handler wrote nothing; its end can share a transaction with others."""
        with self._lock:
            self._handled.append(job)

    def take_handled(self) -> list[LeasedJob]:
        """Take the jobs that only have to be ended."""
        with self._lock:
            jobs, self._handled = self._handled, []
            return jobs

    def take_waiting(self) -> list[LeasedJob]:
        """Let go of everything that was not begun."""
        with self._lock:
            jobs = list(self._waiting)
            self._waiting.clear()
            return jobs

    def running_seconds(self, now: float) -> float:
        """Say for how long the job at work has been; 0 without one."""
        running = self._running
        return 0.0 if running is None else now - running.since

    def is_slow(self, now: float, patience: float) -> bool:
        """Say whether a job has been at work for longer than `patience` seconds."""
        return self.running_seconds(now) >= patience

    def overdue(self, now: float) -> RunningJob | None:
        """Give the job at work if it has taken longer than it may."""
        running = self._running
        if running is None or running.limit is None or now - running.since < running.limit:
            return None
        return running
