"""What is remembered of earlier samples: a bounded set of numbers, in memory or in a small file.

*Points* (at most POINTS) show since when a position has not moved. *Buckets* hold the
WAL written in each five minutes of the last day: the pattern that a forecast replays.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from outbox_pipeline.watch.sample import ConnectSample, KafkaSample, PostgresSample, Sample

BUCKET_SECONDS = 300
DAY_SECONDS = 86_400
BUCKETS = DAY_SECONDS // BUCKET_SECONDS
POINTS = 240
RECENT_SECONDS = 120.0  # every point of this past is kept
COARSE_SECONDS = 10.0  # before that, one point in this many seconds
KEPT_SECONDS = 1800.0  # and none older than this, but for the newest
FORMAT = 1
RESTART_TOLERANCE = 2.0


@dataclass(frozen=True, slots=True)
class GroupPoint:
    """A group's committed offsets and lag, summed over the partitions it reads."""

    committed: int
    lag: int


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of one sample that later samples are compared with. None: not seen."""

    at: float
    cluster: str | None = None  # system identifier and timeline
    started_at: float | None = None
    stats_reset_at: float | None = None
    wal: int | None = None
    redo: int | None = None
    confirmed: int | None = None
    restart: int | None = None
    pid: int | None = None
    spill_bytes: int | None = None
    total_txns: int | None = None
    reply_at: float | None = None
    reply_age: float | None = None  # by two clocks: the server's and the client's
    inserted: int | None = None
    offset: int | None = None
    tickers: int | None = None  # sessions of the ticker
    produced: int | None = None  # sum of the topics' end offsets
    groups: Mapping[str, GroupPoint] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bucket:
    """WAL written in a part of five minutes that was watched."""

    number: int  # epoch seconds // BUCKET_SECONDS
    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class History:
    """What is known of the past; oldest first. Compute facts from it after `remember`."""

    points: tuple[Point, ...] = ()
    buckets: tuple[Bucket, ...] = ()


def lags(kafka: KafkaSample) -> dict[str, GroupPoint]:
    """Sum each group's committed offsets and lag. A partition without a commit counts from its start."""
    result = {}
    for group in kafka.groups:
        read = [key for key in kafka.ends if group.reads(key[0])]
        committed = {key: group.committed.get(key, kafka.starts.get(key, 0)) for key in read}
        lag = sum(max(0, kafka.ends[key] - committed[key]) for key in read)
        result[group.name] = GroupPoint(committed=sum(committed.values()), lag=lag)
    return result


def point_of(sample: Sample) -> Point:
    """Reduce a sample to the numbers that later samples are compared with."""
    point = Point(at=sample.at, unseen=tuple(unseen.source for unseen in sample.unseen))
    if isinstance(sample.postgres, PostgresSample):
        point = _with_postgres(point, sample.postgres, sample.names.slot)
    if isinstance(sample.connect, ConnectSample):
        point = replace(point, offset=sample.connect.offset_lsn)
    if isinstance(sample.kafka, KafkaSample):
        point = replace(point, produced=sum(sample.kafka.ends.values()), groups=lags(sample.kafka))
    return point


def _with_postgres(point: Point, postgres: PostgresSample, slot_name: str) -> Point:
    server, outbox = postgres.server, postgres.outbox
    point = replace(
        point,
        cluster=f"{server.system_identifier}/{server.timeline}",
        started_at=server.started_at,
        wal=server.wal_position,
        redo=server.redo_position,
        tickers=postgres.tickers,
        inserted=outbox.inserted if outbox else None,
        stats_reset_at=outbox.stats_reset_at if outbox else None,
    )
    slot = next((slot for slot in postgres.slots if slot.name == slot_name), None)
    if slot is None:
        return point
    sender = next((s for s in postgres.senders if s.pid == slot.active_pid), None)
    reply_at = sender.reply_at if sender else None
    return replace(
        point,
        confirmed=slot.confirmed_lsn,
        restart=slot.restart_lsn,
        pid=slot.active_pid,
        spill_bytes=slot.spill_bytes,
        total_txns=slot.total_txns,
        reply_at=reply_at,
        reply_age=server.clock - reply_at if reply_at is not None else None,
    )


def remember(history: History, sample: Sample) -> History:
    """Add a sample to the past and forget what is too old."""
    point = point_of(sample)
    points = _thinned([*(p for p in history.points if p.at < point.at), point])
    return History(points=points, buckets=_buckets_with(history, point))


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """Keep every recent point, and of older ones the first point of each ten seconds."""
    now = points[-1].at
    kept: list[Point] = []
    for point in points:
        age = now - point.at
        if age > KEPT_SECONDS:
            continue
        same_slice = kept and point.at // COARSE_SECONDS == kept[-1].at // COARSE_SECONDS
        if age > RECENT_SECONDS and same_slice:
            continue
        kept.append(point)
    if len(kept) == 1 and len(points) > 1:
        kept.insert(0, points[-2])  # a watch that looks once an hour still has something to compare with
    return tuple(kept[-POINTS:])


def _buckets_with(history: History, point: Point) -> tuple[Bucket, ...]:
    """Spread the WAL written since the last point over the five minutes it fell into."""
    last = next((p for p in reversed(history.points) if p.wal is not None), None)
    buckets = {bucket.number: bucket for bucket in history.buckets}
    if last is not None and last.wal is not None and point.wal is not None and point.at > last.at:
        written, seconds = point.wal - last.wal, point.at - last.at
        if last.cluster == point.cluster and written >= 0 and seconds <= DAY_SECONDS:
            for number, share in _shares(last.at, point.at):
                old = buckets.get(number, Bucket(number, 0.0, 0.0))
                buckets[number] = Bucket(number, old.seconds + share, old.bytes + written * share / seconds)
    oldest = int(point.at) // BUCKET_SECONDS - BUCKETS
    return tuple(buckets[number] for number in sorted(buckets) if number >= oldest)


def _shares(start: float, end: float) -> list[tuple[int, float]]:
    """Cut a stretch of time at the bucket borders: (bucket, seconds in it)."""
    cuts = []
    number = int(start // BUCKET_SECONDS)
    while start < end:
        border = min(end, float((number + 1) * BUCKET_SECONDS))
        if border > start:
            cuts.append((number, border - start))
        start, number = border, number + 1
    return cuts


def comparable(past: Sequence[Point], present: Point) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """Cut the past where it stops being comparable, and say why.

    A failover, a restored server or a recreated slot would otherwise become a negative rate or a
    wrong "since". Points without PostgreSQL are kept: they say that it was not seen.
    """
    kept = [present]
    notes = []
    last = present  # the latest point that saw PostgreSQL
    for point in reversed(past):
        if point.wal is None:
            kept.append(point)
            continue
        if last.wal is not None and (reason := _discontinuity(point, last)):
            notes.append(
                f"{reason} {present.at - point.at:.0f} s ago or later; rates are taken from there on"
            )
            break
        if last.wal is not None and _restarted(point, last):
            notes.append(f"PostgreSQL restarted {present.at - point.at:.0f} s ago or later")
        kept.append(point)
        last = point
    return tuple(reversed(kept)), tuple(notes)


def _discontinuity(before: Point, after: Point) -> str:
    if before.cluster != after.cluster:
        same = (before.cluster or "").split("/")[0] == (after.cluster or "").split("/")[0]
        return (
            "the server moved to another timeline (failover or restore)" if same else "it is another server"
        )
    if before.wal is not None and after.wal is not None and after.wal < before.wal:
        return "the WAL position went backwards (restore or failover)"
    if _backwards(before.confirmed, after.confirmed) or _backwards(before.restart, after.restart):
        return "the slot was made anew"
    if before.confirmed is None and after.confirmed is not None:
        return "the slot appeared"
    if _backwards(before.inserted, after.inserted) and before.started_at == after.started_at:
        return "the statistics were reset or the table was made anew"
    return ""


def _backwards(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after < before


def _restarted(before: Point, after: Point) -> bool:
    if before.started_at is None or after.started_at is None:
        return False
    return after.started_at - before.started_at > RESTART_TOLERANCE


def file_of(environ: Mapping[str, str], pipeline: str, source: str) -> Path:
    """Name the file in which one-shot commands keep the history of a pipeline's definition."""
    home = Path(environ.get("HOME", "") or "/")
    state = Path(environ.get("XDG_STATE_HOME", "") or home / ".local" / "state")
    digest = hashlib.sha256(os.path.abspath(source).encode()).hexdigest()[:12]
    return state / "outboxctl" / f"{pipeline}-{digest}.json"


def load(path: Path) -> History:
    """Read the history an earlier command left; an unreadable or foreign file is an empty history."""
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["format"] != FORMAT:
            return History()
        return History(
            points=tuple(_point(raw) for raw in document["points"]),
            buckets=tuple(Bucket(*raw) for raw in document["buckets"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return History()


def _point(raw: Mapping[str, Any]) -> Point:
    groups = {name: GroupPoint(**group) for name, group in raw.get("groups", {}).items()}
    return Point(**{**raw, "groups": groups, "unseen": tuple(raw.get("unseen", ()))})


def save(path: Path, history: History) -> None:
    """Leave the history for the next command: at most about 60 kB, replaced in one step.

    Raises OSError where the folder cannot be written.
    """
    document = {
        "format": FORMAT,
        "points": [_small(asdict(point)) for point in history.points],
        "buckets": [[b.number, round(b.seconds, 1), round(b.bytes)] for b in history.buckets],
    }
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _small(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if value not in (None, (), {})}
