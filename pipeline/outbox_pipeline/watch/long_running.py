"""The state of the long-running watch: take a sample, remember it, assess it. One thread samples."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from outbox_pipeline.watch.assess import verdict_of
from outbox_pipeline.watch.facts import facts_of
from outbox_pipeline.watch.history import History, remember
from outbox_pipeline.watch.metrics import WatchCounts
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.sample import Sample
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import Verdict

CHANGES_KEPT = 50


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A change of verdict, and when (epoch seconds)."""

    at: float
    verdict: Verdict


class WatchState:
    """Holds the last assessment, the history and the counts. One thread calls `step`; any thread may read."""

    def __init__(
        self,
        take: Callable[[], Sample],
        thresholds: Thresholds,
        *,
        clock: Callable[[], float] = time.monotonic,
        history: History | None = None,
    ) -> None:
        self._take, self._thresholds, self._clock = take, thresholds, clock
        self._lock = threading.Lock()
        self._history = history or History()
        self._answer: Assessment | None = None
        self._answered_at = float("-inf")
        self._counts = WatchCounts()
        self._changes: deque[VerdictChange] = deque(maxlen=CHANGES_KEPT)

    def step(self) -> Assessment:
        """Take one sample and assess it."""
        began = self._clock()
        sample = self._take()
        past = remember(self._history, sample)
        facts = facts_of(past, sample, self._thresholds)
        answer = Assessment(facts, verdict_of(facts))
        ended = self._clock()
        with self._lock:
            changed = self._answer is None or self._answer.verdict.key is not answer.verdict.key
            if changed:
                self._changes.append(VerdictChange(sample.at, answer.verdict))
            self._answer, self._answered_at = answer, ended
            self._history = past
            self._counts = replace(
                self._counts,
                samples=self._counts.samples + 1,
                sample_seconds=ended - began,
                changes=self._counts.changes + changed,
            )
        return answer

    @property
    def answer(self) -> Assessment | None:
        """The last answer; None before the first."""
        with self._lock:
            return self._answer

    @property
    def history(self) -> History:
        """What is remembered."""
        with self._lock:
            return self._history

    @property
    def changes(self) -> tuple[VerdictChange, ...]:
        """The last changes of verdict, oldest first."""
        with self._lock:
            return tuple(self._changes)

    @property
    def counts(self) -> WatchCounts:
        """What the watch has done."""
        with self._lock:
            return self._counts

    def age(self) -> float:
        """Return how old the last answer is, in seconds; infinite before the first."""
        with self._lock:
            return self._clock() - self._answered_at
