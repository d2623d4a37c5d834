"""Rules about consumer groups. As in Burrow, committed offsets are judged over time, not the lag alone."""

from __future__ import annotations

from outbox_connectors.findings import Severity
from outbox_pipeline.watch.facts import Facts, GroupFacts
from outbox_pipeline.watch.formatting import count, duration
from outbox_pipeline.watch.verdict import VerdictKey, WatchFinding

GONE = frozenset({"EMPTY", "DEAD", "UNKNOWN"})


def group_stopped(facts: Facts) -> WatchFinding | None:
    """A group has records to read and no member, or members that commit nothing."""
    worst: tuple[GroupFacts, str] | None = None
    for group in facts.groups:
        problem = _stopped(facts, group)
        if problem and (worst is None or group.lag > worst[0].lag):
            worst = group, problem
    if worst is None:
        return None
    group, problem = worst
    age = f", the oldest {duration(group.lag_seconds)} old" if group.lag_seconds else ""
    return WatchFinding(
        VerdictKey.GROUP_STOPPED,
        # A group that never ran may be one that is still to come.
        Severity.CRITICAL
        if group.still_seconds >= facts.thresholds.stalled_critical and group.group.committed
        else Severity.WARNING,
        f"consumer group {group.group.name} {problem}; {count(group.lag, 'record')} waiting{age}",
        "start the consumer, or look at its log for the event it does not get past",
        {
            "lag": group.lag,
            "state": group.group.state,
            "members": group.group.members,
            "still_seconds": group.still_seconds,
        },
    )


def _stopped(facts: Facts, group: GroupFacts) -> str:
    if group.lag == 0:
        return ""
    if group.group.state.upper() in GONE or group.group.members == 0:
        return "has no running consumer" if group.group.committed else "has never read anything"
    standing = group.still_seconds >= facts.thresholds.group_stopped
    if standing and (group.lag_seconds is None or group.lag_seconds >= facts.thresholds.group_stopped):
        members = count(group.group.members, "member")
        return f"has {members} but has committed nothing for {duration(group.still_seconds)}"
    return ""


def group_lagging(facts: Facts) -> WatchFinding | None:
    """A group reads, but slower than events arrive, or it is far behind."""
    limits = facts.thresholds
    behind = [
        g
        for g in facts.groups
        if g.lag >= limits.group_lag
        and not _stopped(facts, g)
        and (g.growing or (g.lag_seconds is not None and g.lag_seconds >= limits.group_lag_seconds))
    ]
    if not behind:
        return None
    worst = max(behind, key=lambda group: group.lag)
    age = f", the oldest {duration(worst.lag_seconds)} old" if worst.lag_seconds is not None else ""
    trend = ", and it grows" if worst.growing else ""
    return WatchFinding(
        VerdictKey.GROUP_LAGGING,
        Severity.WARNING,
        f"consumer group {worst.group.name} is {count(worst.lag, 'record')} behind{age}{trend}",
        "start more consumers (at most one a partition), or look at what each event costs",
        {"lag": worst.lag, "lag_seconds": worst.lag_seconds, "growing": worst.growing},
    )
