"""How long until a slot is invalidated, and how long until the disk is full.

Both ends are reached by writing a known number of bytes of WAL, so the question is how fast WAL
will be written. Its shape repeats with the day (nights, batches), so the last day answers it:

expected  replays the last day from this time of day on. With a shorter past the present rate is assumed to
          continue, or that of the last half hour where it is greater: full pages after a checkpoint and
          vacuum come in bursts, and between two of them the present rate is too low.
earliest  is the worst case seen so far: the shortest stretch in which that much was written, in the
          last day by five minutes, in the last half hour by ten seconds.
          A rate never seen before counts in both.

A slot is not invalidated when `safe_wal_size` reaches zero but at the end of the next checkpoint
after that (measured on PostgreSQL 13 to 18), so a forecast knows when checkpoints come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outbox_pipeline.watch.history import (
    BUCKET_SECONDS,
    BUCKETS,
    COARSE_SECONDS,
    DAY_SECONDS,
    KEPT_SECONDS,
    Bucket,
    Point,
)
from outbox_pipeline.watch.sample import PostgresSample, Sample, ServerSample, Slot
from outbox_pipeline.watch.verdict import End, SecondsLeft

RECENT_SECONDS = 120.0
LATELY_SECONDS = 60.0  # a shorter past shows no shape
SURGE = 1.5  # a present rate this many times above every past rate replaces the forecast
HORIZON_DAYS = 400  # beyond this no end is reported


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of WAL: by five minutes over a day, by ten seconds over half an hour, and the present one."""

    buckets: tuple[Bucket, ...]  # oldest first, only sufficiently watched ones
    recent: float | None  # bytes per second over the last two minutes
    seconds: float  # how much history this is computed from
    lately: tuple[float, ...] = ()  # bytes in each COARSE_SECONDS of the last half hour, oldest first

    @property
    def rate(self) -> float | None:
        """The rate used for a history shorter than a day, in bytes per second."""
        if self.recent is None or not self.lately:
            return self.recent
        return max(self.recent, sum(self.lately) / (len(self.lately) * COARSE_SECONDS))

    @property
    def whole_day(self) -> bool:
        """Whether the past covers (nearly) a day, so that it may be replayed."""
        return self.seconds >= 0.9 * DAY_SECONDS


def rates_of(buckets: Sequence[Bucket], points: Sequence[Point]) -> Rates:
    """Take the rates from the history. The newest points give the present rate."""
    known = [p for p in points if p.wal is not None]
    recent = None
    if len(known) > 1:
        window = [p for p in known if known[-1].at - p.at <= RECENT_SECONDS]
        first = window[0] if len(window) > 1 else known[-2]
        seconds = known[-1].at - first.at
        if seconds > 0 and known[-1].wal is not None and first.wal is not None:
            recent = max(0.0, (known[-1].wal - first.wal) / seconds)
    watched = tuple(b for b in buckets if b.seconds >= BUCKET_SECONDS / 10)
    seconds_watched = sum(b.seconds for b in buckets)
    return Rates(buckets=watched, recent=recent, seconds=seconds_watched, lately=_lately(known))


def _lately(known: Sequence[Point]) -> tuple[float, ...]:
    """Cut the last half hour into pieces of ten seconds; between two looks WAL is taken to come evenly."""
    if not known or known[-1].at - known[0].at < LATELY_SECONDS:
        return ()
    end = known[-1].at
    known = [*(p for p in known[:-1] if p.at < end), known[-1]]  # a clock may have been set back
    count = int(min(end - known[0].at, KEPT_SECONDS) // COARSE_SECONDS)
    times = [point.at for point in known]
    ends = [_written(known, times, end - n * COARSE_SECONDS) for n in range(count, -1, -1)]
    return tuple(max(0.0, after - before) for before, after in pairwise(ends))


def _written(known: Sequence[Point], times: Sequence[float], at: float) -> float:
    """Return where the log ended at a time between two looks."""
    right = min(max(bisect_right(times, at), 1), len(known) - 1)
    before, after = known[right - 1], known[right]
    part = (at - before.at) / (after.at - before.at)
    return (before.wal or 0) + part * ((after.wal or 0) - (before.wal or 0))


def _profile(buckets: Sequence[Bucket]) -> list[float]:
    """Bytes per five minutes over the stretch from the first to the last bucket; gaps get the mean."""
    rates = {b.number: b.bytes / b.seconds * BUCKET_SECONDS for b in buckets}
    mean = sum(rates.values()) / len(rates)
    return [rates.get(number, mean) for number in range(buckets[0].number, buckets[-1].number + 1)]


def expected_seconds(rates: Rates, now: float, headroom: float) -> float | None:
    """Return when `headroom` bytes will probably have been written. None: not within sight."""
    if headroom <= 0:
        return 0.0
    if not rates.whole_day:
        return _at_rate(headroom, rates.rate)
    profile = _profile(rates.buckets)
    today = int(now // BUCKET_SECONDS)
    offset = today - rates.buckets[0].number  # where "now, a day ago" stands in the profile
    replayed = _walk(profile, offset, headroom, (now % BUCKET_SECONDS) / BUCKET_SECONDS)
    if (surge := _surge(rates, profile)) is not None:
        return min(replayed or float("inf"), headroom / surge)
    return replayed


def earliest_seconds(rates: Rates, now: float, headroom: float) -> float | None:
    """Return when `headroom` bytes could be written at the earliest, as far as the history shows."""
    if headroom <= 0:
        return 0.0
    candidates = [expected_seconds(rates, now, headroom)]
    if rates.buckets:
        profile = _profile(rates.buckets)
        candidates.append(_scaled(_worst(profile, headroom), BUCKET_SECONDS))
    if not rates.whole_day or headroom <= sum(rates.lately):
        candidates.append(_scaled(_worst(rates.lately, headroom), COARSE_SECONDS))
    known = [candidate for candidate in candidates if candidate is not None]
    return min(known) if known else None


def _scaled(steps: float | None, seconds: float) -> float | None:
    return None if steps is None else steps * seconds


def _at_rate(headroom: float, rate: float | None) -> float | None:
    if not rate or headroom / rate > HORIZON_DAYS * DAY_SECONDS:
        return None
    return headroom / rate


def _surge(rates: Rates, profile: Sequence[float]) -> float | None:
    if rates.recent is None or rates.recent * BUCKET_SECONDS <= SURGE * max(profile):
        return None
    return rates.recent


def _walk(profile: Sequence[float], offset: int, headroom: float, part: float) -> float | None:
    """Add up the profile, round and round, from `offset` on until the headroom is used."""
    day = sum(profile)
    if day <= 0:
        return None
    seconds = -part * BUCKET_SECONDS
    headroom += profile[offset % len(profile)] * part
    if headroom / day > HORIZON_DAYS:
        return None
    rounds = int(headroom // day)
    seconds += rounds * len(profile) * BUCKET_SECONDS
    headroom -= rounds * day
    for step in range(len(profile) + 1):
        written = profile[(offset + step) % len(profile)]
        if written >= headroom:
            return seconds + (headroom / written if written else 0.0) * BUCKET_SECONDS
        headroom -= written
        seconds += BUCKET_SECONDS
    return seconds


def _worst(profile: Sequence[float], headroom: float) -> float | None:
    """Count the steps of the shortest stretch of the past, taken round and round, that wrote that much."""
    day = sum(profile)
    if day <= 0 or headroom / day > HORIZON_DAYS:
        return None
    rounds = int(headroom // day)
    rest = headroom - rounds * day
    count = len(profile)
    shortest = float(count)
    end, written = 0, 0.0
    for start in range(count):
        while written < rest and end - start < count:
            written += profile[end % count]
            end += 1
        if written >= rest and end > start:
            last = profile[(end - 1) % count]
            excess = (written - rest) / last if last else 0.0
            shortest = min(shortest, end - start - min(1.0, excess))
        written -= profile[start % count] if end > start else 0.0
        end = max(end, start + 1)
    return rounds * count + shortest


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When checkpoints start and how long they take, in seconds from now."""

    first_start: float
    cycle: float
    duration: float

    def end_after(self, seconds: float) -> float:
        """Return when the first checkpoint ends that ends at or after `seconds` from now."""
        end = self.first_start + self.duration
        if end >= seconds or self.cycle <= 0:
            return end
        missing = (seconds - end) / self.cycle
        return end + self.cycle * (int(missing) + (missing > int(missing)))


def checkpoints(server: ServerSample, rate: float | None, observed_duration: float | None) -> Checkpoints:
    """Forecast checkpoints: by time, or by WAL written since the last one, whichever comes first.

    The distance in WAL is max_wal_size / (1 + checkpoint_completion_target) (measured: 120-140 MB on
    13, 100-120 MB on 18 for 200 MB). Without an observed duration a checkpoint is taken to be quick.
    """
    settings = server.settings
    distance = settings.max_wal_bytes / (1.0 + settings.checkpoint_completion_target)
    by_time = max(0.0, settings.checkpoint_timeout - (server.clock - server.checkpoint_at))
    start, cycle = by_time, settings.checkpoint_timeout
    if rate:
        since = max(0, server.wal_position - server.redo_position)
        start = min(start, max(0.0, distance - since) / rate)
        cycle = min(cycle, distance / rate)
    return Checkpoints(first_start=start, cycle=max(cycle, 1.0), duration=observed_duration or 0.0)


def observed_checkpoint_seconds(points: Sequence[Point], server: ServerSample) -> float | None:
    """Return how long the last checkpoint took, if its end fell between two points."""
    known = [p for p in points if p.redo is not None]
    for before, after in zip(reversed(known[:-1]), reversed(known[1:]), strict=False):
        if before.redo != after.redo and after.redo == server.redo_position:
            skew = known[-1].at - server.clock
            return max(0.0, (before.at + after.at) / 2 - skew - server.checkpoint_at)
    return None


def forecasts(
    buckets: Sequence[Bucket], points: Sequence[Point], sample: Sample, slot: Slot
) -> tuple[SecondsLeft, ...]:
    """Forecast each end that can come for this slot, as if nothing were consumed from now on."""
    if not isinstance(sample.postgres, PostgresSample) or slot.lost or slot.wal_status is None:
        return ()
    server = sample.postgres.server
    if server.in_recovery:
        return ()
    rates = rates_of(buckets, points)
    ends = []
    if server.settings.slot_cap_bytes is not None and slot.safe_wal_bytes is not None:
        ends.append(_invalidation(rates, points, server, slot.safe_wal_bytes))
    if (idle := _idle_timeout(server, slot, rates)) is not None:
        ends.append(idle)
    if sample.disk_free_bytes is not None:
        headroom = float(sample.disk_free_bytes + recyclable(sample.postgres))
        ends.append(
            SecondsLeft(
                end=End.DISK,
                earliest=earliest_seconds(rates, server.clock, headroom),
                expected=expected_seconds(rates, server.clock, headroom),
                history_seconds=rates.seconds,
            )
        )
    return tuple(ends)


def _invalidation(rates: Rates, points: Sequence[Point], server: ServerSample, safe: int) -> SecondsLeft:
    """Forecast the checkpoint that ends after the cap is passed.

    A checkpoint may already run and end at any moment, so the earliest end adds nothing to passing
    the cap, unless the next one has not even started by then.
    """
    ahead = checkpoints(server, rates.recent, observed_checkpoint_seconds(points, server))
    passed = earliest_seconds(rates, server.clock, float(safe))
    probably = expected_seconds(rates, server.clock, float(safe))
    earliest = passed
    if passed is not None and passed < ahead.first_start:
        earliest = ahead.first_start if rates.recent else passed
    expected = ahead.end_after(probably) if probably is not None else None
    if earliest is not None and expected is not None:
        earliest = min(earliest, expected)
    return SecondsLeft(
        end=End.INVALIDATION, earliest=earliest, expected=expected, history_seconds=rates.seconds
    )


def _idle_timeout(server: ServerSample, slot: Slot, rates: Rates) -> SecondsLeft | None:
    """Forecast the checkpoint that invalidates a slot nobody uses (PostgreSQL 18, off by default)."""
    timeout = server.settings.idle_slot_timeout
    if timeout <= 0 or slot.active or slot.synced or slot.inactive_seconds is None:
        return None
    passed = max(0.0, timeout - slot.inactive_seconds)
    ahead = checkpoints(server, rates.recent, None)
    return SecondsLeft(End.INVALIDATION, passed, ahead.end_after(passed), rates.seconds)


def recyclable(postgres: PostgresSample) -> int:
    """Return the bytes of pg_wal that can be recycled before more disk space is needed."""
    server = postgres.server
    if server.wal_dir_bytes is None:
        return 0
    starts = [s.restart_lsn for s in postgres.slots if s.restart_lsn is not None and not s.lost]
    oldest = min([server.redo_position, *starts])
    needed = max(server.wal_position - oldest, server.settings.wal_keep_bytes)
    return max(0, server.wal_dir_bytes - needed)


__all__ = [
    "BUCKETS",
    "Checkpoints",
    "Rates",
    "checkpoints",
    "earliest_seconds",
    "expected_seconds",
    "forecasts",
    "observed_checkpoint_seconds",
    "rates_of",
    "recyclable",
]
