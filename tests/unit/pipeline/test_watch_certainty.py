"""What one look, or a few seconds of history, may not say: an outage, or an end that is near."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outbox_connectors.errors import AccessDenied, LoginFailed, Unreachable
from outbox_connectors.findings import Severity
from outbox_pipeline.connect.transport import NotKafkaConnect
from outbox_pipeline.watch import history
from outbox_pipeline.watch.one_shot import look
from outbox_pipeline.watch.sample import KafkaSample, Sample
from outbox_pipeline.watch.sampling import Sampler
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import VerdictKey
from watch_samples import (
    CONNECT_GONE,
    HEALTHY,
    KAFKA_GONE,
    MIB,
    NAMES,
    down,
    growing,
    history_of,
    later,
    verdict,
    with_slot,
)

# --- one failed look ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "key"),
    [
        ({"kafka": KAFKA_GONE}, VerdictKey.KAFKA_UNREACHABLE),
        ({"connect": CONNECT_GONE}, VerdictKey.CONNECT_UNREACHABLE),
    ],
)
def test_one_failed_look_is_no_outage_and_two_are(gone: dict[str, Any], key: VerdictKey) -> None:
    first, second = (replace(later(HEALTHY, seconds), **gone) for seconds in (2, 4))
    once = verdict(HEALTHY, first)
    assert once.key is VerdictKey.HEALTHY
    assert [unseen.source for unseen in once.unseen] == list(gone)
    assert verdict(HEALTHY, first, second).key is key
    assert (
        verdict(HEALTHY, first, later(HEALTHY, 4), replace(later(HEALTHY, 6), **gone)).key
        is VerdictKey.HEALTHY
    )


def test_rows_that_wait_while_kafka_failed_to_answer_once_are_no_dead_sink() -> None:
    *steps, last = growing(20)
    assert verdict(*steps, replace(last, kafka=KAFKA_GONE)).key is not VerdictKey.SINK_NOT_ACKING


def test_what_was_never_seen_is_believed_to_be_away_at_once() -> None:
    assert verdict(replace(HEALTHY, kafka=KAFKA_GONE)).key is VerdictKey.KAFKA_UNREACHABLE


def test_a_watch_that_looks_once_an_hour_says_at_once_what_it_does_not_find() -> None:
    assert (
        verdict(HEALTHY, replace(later(HEALTHY, 3600), kafka=KAFKA_GONE)).key is VerdictKey.KAFKA_UNREACHABLE
    )


def test_a_refusal_is_an_answer_and_needs_no_second_look() -> None:
    refused = replace(later(HEALTHY, 2), kafka=replace(KAFKA_GONE, refused=True))
    assert verdict(HEALTHY, refused).key is VerdictKey.KAFKA_UNREACHABLE


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (LoginFailed("Kafka does not answer: SASL authentication error"), True),
        (AccessDenied("Topic authorization failed"), True),
        (NotKafkaConnect("answers GET / with 200 and text/html, not with JSON"), True),
        (Unreachable("the password file's disk has no permission to answer"), False),  # words decide nothing
    ],
)
def test_the_class_of_an_error_says_whether_the_server_answered(error: Unreachable, refused: bool) -> None:
    with Sampler(NAMES, None, None, _Failing(error)) as sampler:
        (unseen,) = sampler.take().unseen
    assert unseen.refused is refused


class _Failing:
    """A source of samples that always raises the same error."""

    def __init__(self, error: Unreachable) -> None:
        self._error = error

    def look(self) -> KafkaSample:
        raise self._error

    def close(self) -> None:
        """There is nothing to close."""


class _Samples(Sampler):
    """Gives samples that were made before."""

    def __init__(self, *samples: Sample) -> None:
        super().__init__(NAMES, None, None, None)
        self._samples: Iterator[Sample] = iter(samples)

    def take(self, canary_seconds: float | None = None) -> Sample:
        return next(self._samples)


@pytest.mark.parametrize(
    ("left", "slept"), [((HEALTHY,), [2.0]), ((replace(HEALTHY, kafka=KAFKA_GONE),), [])]
)
def test_status_looks_again_at_what_has_just_failed(
    left: tuple[Sample, ...], slept: list[float], tmp_path: Path
) -> None:
    """A young point in the file spares the second look only if it saw no more than the first."""
    file = tmp_path / "history.json"
    history.save(file, history_of(left))
    waits: list[float] = []
    samples = (replace(later(HEALTHY, seconds), kafka=KAFKA_GONE) for seconds in (10, 12))
    with _Samples(*samples) as sampler:
        answer = look(sampler, Thresholds(), interval_seconds=2.0, history_file=file, sleep=waits.append)
    assert waits == slept
    assert answer.verdict.key is VerdictKey.KAFKA_UNREACHABLE


# --- a few seconds of history ------------------------------------------------------------------


def _filling(seconds: int) -> list[Sample]:
    """Nobody consumes, 1 MiB/s is written, and there is room for half an hour of it."""
    steps = [down(later(HEALTHY, s, wal=s * MIB)) for s in range(0, seconds + 1, 10)]
    return [with_slot(s, safe_wal_bytes=(1800 - 10 * n) * MIB) for n, s in enumerate(steps)]


def test_a_burst_of_seconds_does_not_foresee_the_next_half_hour() -> None:
    answer = verdict(*_filling(20))
    assert answer.seconds_left is not None
    assert answer.seconds_left.expected == pytest.approx(1780, rel=0.2)  # said, and that it is from 20 s
    assert answer.severity is Severity.WARNING


def test_a_rate_that_lasts_does() -> None:
    assert verdict(*_filling(120)).severity is Severity.CRITICAL


def test_an_end_within_seconds_is_critical_from_seconds_of_history() -> None:
    steps = [with_slot(s, safe_wal_bytes=(60 - 10 * n) * MIB) for n, s in enumerate(_filling(20))]
    assert verdict(*steps).severity is Severity.CRITICAL


def test_an_end_in_a_year_is_not_spoken_of() -> None:
    steps = [down(later(HEALTHY, s, wal=s * 500)) for s in range(0, 61, 10)]
    answer = verdict(*steps)
    assert answer.seconds_left is not None
    assert answer.seconds_left.expected is not None
    assert "invalidated" not in answer.cause
