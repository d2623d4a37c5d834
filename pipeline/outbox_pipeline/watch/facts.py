"""Turn a sample and its past into the differences, rates and ages that the rules ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from outbox_pipeline.watch.forecast import forecasts
from outbox_pipeline.watch.history import (
    GroupPoint,
    History,
    Point,
    comparable,
    lags,
)
from outbox_pipeline.watch.sample import (
    ConnectSample,
    GroupSample,
    KafkaSample,
    PostgresSample,
    Sample,
    Sender,
    Slot,
    WatchedNames,
)
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import SecondsLeft, Unseen

RATE_SECONDS = 30.0  # rates are taken over the last half minute, or what there is
SECOND_LOOK_SECONDS = (
    60.0  # looks further apart than this do not confirm each other: an outage is reported at once
)
STATISTICS_SECONDS = 2.0  # within which a row that was inserted is counted


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group with what its past says about it."""

    group: GroupSample
    lag: int
    lag_seconds: float | None  # age of the oldest record it has not committed; None: too short a past
    still_seconds: float  # for how long it has been seen to have records and not to commit
    growing: bool  # the lag never shrank while it was watched, and grew


@dataclass(frozen=True, slots=True)
class Facts:
    """What is derived from a sample and its past. None: not known, or without meaning here."""

    sample: Sample
    thresholds: Thresholds
    points: tuple[Point, ...]  # comparable with the present, oldest first, the present last
    sample_past: tuple[Point, ...]  # every earlier point, comparable or not
    notes: tuple[str, ...]
    slot: Slot | None
    sender: Sender | None
    retained: int | None
    unconfirmed: int | None
    undelivered: int | None  # WAL that neither the slot nor Connect's stored offset has passed
    wal_rate: float | None
    drain_rate: float | None  # bytes of WAL the consumer confirms per second
    insert_rate: float | None
    confirmed_still: float  # for how long the position has been seen not to move
    restart_still: float
    inserted_since: int | None  # rows since the position stood still
    decoded_since: int | None  # transactions that the slot's decoder has seen since then
    pending_seconds: float  # how long rows have been seen to wait
    ticking_seconds: float  # for how long a ticker has been seen
    session_seconds: float  # how long the present consumer has been seen on the slot
    offset_still: float | None  # how long ago Connect stored an offset while the position stood; None: never
    groups: tuple[GroupFacts, ...]
    left: SecondsLeft | None  # while WAL piles up: the nearer end
    reserve: tuple[SecondsLeft, ...]  # how long it would last if consumption stopped now

    @property
    def names(self) -> WatchedNames:
        """The names of this pipeline's slot, connector, topics and groups."""
        return self.sample.names

    @property
    def postgres(self) -> PostgresSample | None:
        """The sample of PostgreSQL; None if it did not answer."""
        return self.sample.postgres if isinstance(self.sample.postgres, PostgresSample) else None

    @property
    def connect(self) -> ConnectSample | None:
        """The sample of Connect; None if it did not answer."""
        return self.sample.connect if isinstance(self.sample.connect, ConnectSample) else None

    @property
    def kafka(self) -> KafkaSample | None:
        """The sample of Kafka; None if it did not answer."""
        return self.sample.kafka if isinstance(self.sample.kafka, KafkaSample) else None

    @property
    def present(self) -> Point:
        """The present as a point."""
        return self.points[-1]

    @property
    def past(self) -> tuple[Point, ...]:
        """The points before the present."""
        return self.points[:-1]

    @property
    def is_copy(self) -> bool:
        """Whether the slot is a standby's copy of a failover slot, which is not consumed there."""
        recovering = self.postgres is not None and self.postgres.server.in_recovery
        return recovering and self.slot is not None and (self.slot.synced or self.slot.failover)

    def unreachable(self, source: str) -> Unseen | None:
        """Return why a source is out of reach, once that is certain: one failed look is no outage.

        A look fails for less than an outage: a broker that is busy, a rebalance of the workers. So
        it takes two in a row, or an answer that rejects us. Where no other sample is recent, one failed
        look is enough.
        """
        unseen = next((u for u in self.sample.unseen if u.source == source), None)
        if unseen is None or unseen.refused or not self.sample_past:
            return unseen
        last = self.sample_past[-1]
        alone = self.sample.at - last.at > SECOND_LOOK_SECONDS
        return unseen if alone or source in last.unseen else None

    def unseen_seconds(self, source: str) -> float:
        """Return for how long a source has been seen to be out of reach; 0 when it is there."""
        if not any(unseen.source == source for unseen in self.sample.unseen):
            return 0.0
        since = self.sample.at
        for point in reversed(self.sample_past):
            if source not in point.unseen:
                break
            since = point.at
        return self.sample.at - since


def facts_of(history: History, sample: Sample, thresholds: Thresholds) -> Facts:
    """Compute every fact once. Pure. The newest point of `history` must be the sample's (see `remember`)."""
    *past, present = history.points
    assert present.at == sample.at, "remember the sample before computing from it"
    points, notes = comparable(past, present)
    postgres = sample.postgres if isinstance(sample.postgres, PostgresSample) else None
    slot = sender = None
    if postgres is not None:
        slot = next((s for s in postgres.slots if s.name == sample.names.slot), None)
        sender = next((s for s in postgres.senders if slot and s.pid == slot.active_pid), None)
    still_from = standing_since(points, lambda p: p.confirmed)
    counted_from = _counted_from(points, still_from, sender)
    confirmed_still = sample.at - still_from.at if still_from else 0.0
    reserve = forecasts(history.buckets, points, sample, slot) if slot and postgres else ()
    wal_rate = rate(points, lambda p: p.wal)
    drain_rate = rate(points, lambda p: p.confirmed)
    return Facts(
        sample=sample,
        thresholds=thresholds,
        points=points,
        sample_past=tuple(past),
        notes=notes,
        slot=slot,
        sender=sender,
        retained=retained_bytes(postgres, slot),
        unconfirmed=unconfirmed_bytes(postgres, slot),
        undelivered=_undelivered(postgres, slot, present),
        wal_rate=wal_rate,
        drain_rate=drain_rate,
        insert_rate=rate(points, lambda p: p.inserted),
        confirmed_still=confirmed_still,
        restart_still=_still(points, lambda p: p.restart),
        inserted_since=_since(counted_from, present, lambda p: p.inserted),
        decoded_since=_since(still_from, present, lambda p: p.total_txns),
        pending_seconds=_pending(points, counted_from),
        ticking_seconds=_ticking(points),
        session_seconds=_still(points, lambda p: p.pid),
        offset_still=_offset_still(points, still_from),
        groups=_groups(sample, points),
        left=_left(reserve, points, slot, retained_bytes(postgres, slot) or 0, thresholds),
        reserve=reserve,
    )


def retained_bytes(postgres: PostgresSample | None, slot: Slot | None) -> int | None:
    """Return how much WAL a slot keeps, where that means something.

    Not for a lost slot (its restart_lsn may stay and "grow" for ever), not for one that never
    reserved WAL, not on a standby, whose own position may be behind.
    """
    if postgres is None or slot is None or slot.restart_lsn is None or slot.lost:
        return None
    if slot.wal_status is None or postgres.server.in_recovery:
        return None
    return max(0, postgres.server.wal_position - slot.restart_lsn)


def unconfirmed_bytes(postgres: PostgresSample | None, slot: Slot | None) -> int | None:
    """Return how much WAL the consumer has not confirmed. None for a lost slot and on a standby."""
    if postgres is None or slot is None or slot.confirmed_lsn is None or slot.lost:
        return None
    if postgres.server.in_recovery:
        return None
    return max(0, postgres.server.wal_position - slot.confirmed_lsn)


def _undelivered(postgres: PostgresSample | None, slot: Slot | None, present: Point) -> int | None:
    """Return how much WAL is certainly not on Kafka's side yet.

    Debezium confirms to the slot only when the next record comes by, so after the last event of a
    burst the stored offset is the better witness (seen on 3.7.0.Final without a ticker).
    """
    unconfirmed = unconfirmed_bytes(postgres, slot)
    if unconfirmed is None or present.offset is None or present.wal is None:
        return unconfirmed
    return max(0, min(unconfirmed, present.wal - present.offset))


def _counted_from(points: Sequence[Point], still_from: Point | None, sender: Sender | None) -> Point | None:
    """Find the point from which on new rows are rows that were not confirmed.

    A session's rows reach the statistics up to a second late, so the position may move past a row
    that is counted only then. Where the server says that the position stood still long before it was
    first seen, there is nothing to wait for.
    """
    if still_from is None:
        return None
    lag = sender.flush_lag if sender else None
    if lag is not None and lag - (points[-1].at - still_from.at) >= STATISTICS_SECONDS:
        return still_from
    settled = still_from.at + STATISTICS_SECONDS
    return next((p for p in points if p.at >= settled and p.inserted is not None), None)


def _pending(points: Sequence[Point], still_from: Point | None) -> float:
    """Return how long the oldest row written since the position stood still has waited, at least."""
    present = points[-1]
    if still_from is None or still_from.inserted is None or present.inserted is None:
        return 0.0
    later = [p for p in points if p.at >= still_from.at and p.inserted is not None]
    grown = [p.at for p in later if (p.inserted or 0) > still_from.inserted]
    return present.at - grown[0] if grown else 0.0


def _ticking(points: Sequence[Point]) -> float:
    """Return for how long, up to now, there has been a ticker in every look."""
    since = points[-1].at
    for point in reversed(points):
        if point.tickers == 0:
            break
        since = point.at if point.tickers else since
    return points[-1].at - since


def _offset_still(points: Sequence[Point], still_from: Point | None) -> float | None:
    if still_from is None:
        return None
    known = [p for p in points if p.at >= still_from.at and p.offset is not None]
    moved = [later.at for before, later in pairwise(known) if later.offset != before.offset]
    return points[-1].at - moved[-1] if moved else None


def standing_since(points: Sequence[Point], value: Callable[[Point], int | float | None]) -> Point | None:
    """Find the earliest point since which a value is what it is now. None: the value is not known."""
    present = value(points[-1])
    if present is None:
        return None
    since = points[-1]
    for point in reversed(points):
        found = value(point)
        if found is not None and found != present:
            break
        if found is not None:
            since = point
    return since


def _still(points: Sequence[Point], value: Callable[[Point], int | float | None]) -> float:
    since = standing_since(points, value)
    return points[-1].at - since.at if since else 0.0


def _since(start: Point | None, present: Point, value: Callable[[Point], int | None]) -> int | None:
    if start is None:
        return None
    before, now = value(start), value(present)
    return max(0, now - before) if before is not None and now is not None else None


def rate(
    points: Sequence[Point], value: Callable[[Point], int | None], seconds: float = RATE_SECONDS
) -> float | None:
    """Return how fast a number grows, per second. None without two points; never negative."""
    known = [(p.at, v) for p in points if (v := value(p)) is not None]
    if len(known) < 2 or known[-1][0] != points[-1].at:
        return None
    now, last = known[-1]
    older = [(at, v) for at, v in known[:-1] if now - at <= seconds] or [known[-2]]
    at, first = older[0]
    return max(0.0, (last - first) / (now - at))


def _left(
    reserve: Sequence[SecondsLeft],
    points: Sequence[Point],
    slot: Slot | None,
    retained: int,
    thresholds: Thresholds,
) -> SecondsLeft | None:
    """Pick the nearer end, if WAL piles up: the slot is free, or keeps much and does not move."""
    if slot is None or not reserve:
        return None
    if slot.active and retained < thresholds.quiet_bytes and slot.wal_status == "reserved":
        return None
    if (
        slot.active
        and _still(points, lambda p: p.restart) < RATE_SECONDS
        and any(p.restart not in (None, points[-1].restart) for p in points)
    ):
        return None
    return min(reserve, key=lambda left: (left.earliest is None, left.earliest or 0.0))


def _groups(sample: Sample, points: Sequence[Point]) -> tuple[GroupFacts, ...]:
    if not isinstance(sample.kafka, KafkaSample):
        return ()
    now = lags(sample.kafka)
    return tuple(_group(group, now[group.name], points) for group in sample.kafka.groups)


def _group(group: GroupSample, now: GroupPoint, points: Sequence[Point]) -> GroupFacts:
    def committed(point: Point) -> int | None:
        return point.groups[group.name].committed if group.name in point.groups else None

    seen = [p.groups[group.name].lag for p in points if group.name in p.groups]
    return GroupFacts(
        group=group,
        lag=now.lag,
        lag_seconds=_lag_seconds(points, now),
        still_seconds=_waiting(group.name, points),
        growing=len(seen) > 2 and seen == sorted(seen) and seen[-1] > seen[0],
    )


def _waiting(name: str, points: Sequence[Point]) -> float:
    """Return for how long a group has been seen with records to read and without a commit."""
    present = points[-1].groups[name]
    since = points[-1].at
    for point in reversed(points):
        seen = point.groups.get(name)
        if seen is None:
            continue
        if seen.committed != present.committed or seen.lag == 0:
            break
        since = point.at
    return points[-1].at - since


def _lag_seconds(points: Sequence[Point], now: GroupPoint) -> float | None:
    """Return the age of the record that the group reads next. None: the history is too short."""
    if now.lag == 0:
        return 0.0
    produced = [(p.at, p.produced) for p in points if p.produced is not None]
    reached = [at for at, end in produced if end <= now.committed]
    if reached:
        return points[-1].at - reached[-1]
    return None


def group_points(facts: Facts) -> Mapping[str, GroupFacts]:
    """The groups by name."""
    return {g.group.name: g for g in facts.groups}
