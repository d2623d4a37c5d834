"""The one-shot status: take two samples, assess the second, and keep the history for the next command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from outbox_pipeline.watch import history
from outbox_pipeline.watch.assess import verdict_of
from outbox_pipeline.watch.facts import Facts, facts_of
from outbox_pipeline.watch.history import History, Point
from outbox_pipeline.watch.sample import PostgresSample
from outbox_pipeline.watch.sampling import Sampler
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import Verdict

FRESH_SECONDS = 60.0  # with a point this young, left by the last command, one sample is enough


@dataclass(frozen=True, slots=True)
class Assessment:
    """The facts and the verdict on them."""

    facts: Facts
    verdict: Verdict

    @property
    def nothing_seen(self) -> bool:
        """Whether none of the sampled servers answered."""
        sample = self.facts.sample
        asked = [seen for seen in (sample.postgres, sample.connect, sample.kafka) if seen is not None]
        return bool(asked) and len(sample.unseen) == len(asked)


def look(
    sampler: Sampler,
    thresholds: Thresholds,
    *,
    interval_seconds: float,
    history_file: Path | None,
    sleep: Callable[[float], None],
) -> Assessment:
    """Take two samples `interval_seconds` apart and assess the second, with the past from the file.

    The first is left out where the file holds one that is young enough and that saw no more than
    this one: a failure is confirmed by a second sample. A file that cannot be written is not an
    error: the next answer then has a shorter past.
    """
    past = history.load(history_file) if history_file else History()
    sample = sampler.take()
    newest = past.points[-1] if past.points else Point(at=0.0)
    spared = interval_seconds <= sample.at - newest.at <= FRESH_SECONDS
    spared = spared and all(unseen.source in newest.unseen for unseen in sample.unseen)
    if not spared and isinstance(sample.postgres, PostgresSample):
        past = history.remember(past, sample)
        sleep(interval_seconds)
        sample = sampler.take()
    past = history.remember(past, sample)
    facts = facts_of(past, sample, thresholds)
    if history_file is not None:
        with suppress(OSError):
            history.save(history_file, past)
    return Assessment(facts, verdict_of(facts))
