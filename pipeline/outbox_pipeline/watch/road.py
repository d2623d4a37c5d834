"""The road an event takes as a tree of text: table, slot, connector, topics, groups."""

from __future__ import annotations

from dataclasses import dataclass

from outbox_pipeline import lsn
from outbox_pipeline.watch.facts import Facts
from outbox_pipeline.watch.verdict import Unseen
from outbox_pipeline.watch.words import count, duration, number, size, span

TOPICS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Station:
    """One station of the road: what it is, its name, its state, and its numbers."""

    depth: int
    kind: str
    name: str
    state: str
    numbers: str


def stations(facts: Facts) -> list[Station]:
    """List the stations in the order in which an event passes them."""
    return [_table(facts), _slot(facts), _connector(facts), *_topics(facts), *_groups(facts)]


def lines(facts: Facts) -> list[str]:
    """Draw the road."""
    found = stations(facts)
    labels = [_label(found, place) for place in range(len(found))]
    names = max(len(label) for label in labels)
    states = max(len(station.state) for station in found)
    return [
        f"{label.ljust(names)}  {station.state.ljust(states)}  {station.numbers}".rstrip()
        for label, station in zip(labels, found, strict=True)
    ]


def _label(found: list[Station], place: int) -> str:
    """Draw the branch in front of a station's name."""
    station = found[place]
    if station.depth == 0:
        return f"{station.kind} {station.name}"
    last = not any(
        later.depth == station.depth for later in found[place + 1 :] if later.depth <= station.depth
    )
    return f"{'  ' * (station.depth - 1)}{'└' if last else '├'} {station.kind} {station.name}"


def _table(facts: Facts) -> Station:
    outbox = facts.postgres.outbox if facts.postgres else None
    if outbox is None:
        return Station(0, "table", facts.names.table, _absent(facts.sample.postgres), "")
    rate = f"{number(facts.insert_rate)} rows/s" if facts.insert_rate is not None else "rate unknown"
    # Both estimates are 0 until the first vacuum.
    parts = [f"about {count(max(outbox.estimated_rows, outbox.live), 'row')}"]
    if outbox.bytes:
        parts.append(size(outbox.bytes))
    if outbox.oldest_seconds is not None:
        parts.append(f"oldest {duration(outbox.oldest_seconds)}")
    return Station(0, "table", facts.names.table, rate, ", ".join(parts))


def _absent(seen: object) -> str:
    return "not seen" if isinstance(seen, Unseen) or seen is None else "missing"


def _slot(facts: Facts) -> Station:
    slot = facts.slot
    if slot is None:
        return Station(1, "slot", facts.names.slot, _absent(facts.sample.postgres), "")
    state = "lost" if slot.lost else ("active" if slot.active else "unused")
    if slot.wal_status not in (None, "reserved", "lost"):
        state += f", {slot.wal_status}"
    parts = []
    if facts.retained is not None and facts.unconfirmed is not None:
        parts = [f"{size(facts.unconfirmed)} unconfirmed", f"{size(facts.retained)} kept"]
    if facts.left is not None and facts.left.expected is not None:
        what = "lost" if facts.left.end.value == "invalidation" else "disk full"
        parts.append(f"{what} in {span(facts.left.earliest, facts.left.expected)}")
    elif facts.reserve and (nearest := facts.reserve[0]).expected is not None:
        parts.append(f"would last {span(nearest.earliest, nearest.expected)}")
    return Station(1, "slot", slot.name, state, ", ".join(parts))


def _connector(facts: Facts) -> Station:
    connect, name = facts.connect, facts.names.connector
    if connect is None:
        return Station(2, "connector", name, _absent(facts.sample.connect), "")
    if connect.state is None:
        return Station(2, "connector", name, "missing", "")
    tasks = ", ".join(task.state for task in connect.tasks) or "no task"
    at = f"stored {lsn.text(connect.offset_lsn)}" if connect.offset_lsn is not None else "nothing stored yet"
    kind = f" ({connect.offset_type})" if connect.offset_type else ""
    return Station(2, "connector", name, f"{connect.state}, task {tasks}", f"{at}{kind}")


def _topics(facts: Facts) -> list[Station]:
    kafka = facts.kafka
    if kafka is None:
        names = facts.names.topics[:TOPICS_SHOWN]
        return [Station(3, "topic", name, _absent(facts.sample.kafka), "") for name in names]
    ends: dict[str, int] = {}
    for (topic, _), end in kafka.ends.items():
        ends[topic] = ends.get(topic, 0) + end
    shown = sorted(ends)[:TOPICS_SHOWN]
    found = [Station(3, "topic", name, "", f"{count(ends[name], 'record')} so far") for name in shown]
    if len(ends) > TOPICS_SHOWN:
        found.append(Station(3, "topics", f"{len(ends) - TOPICS_SHOWN} more", "", ""))
    return found + [Station(3, "topic", name, "missing", "") for name in kafka.missing_topics]


def _groups(facts: Facts) -> list[Station]:
    if facts.kafka is None:
        return [Station(4, "group", name, _absent(facts.sample.kafka), "") for name in facts.names.groups]
    found = []
    for group in facts.groups:
        state = f"{group.group.state.lower()}, {count(group.group.members, 'member')}"
        age = f", oldest {duration(group.lag_seconds)}" if group.lag and group.lag_seconds is not None else ""
        found.append(
            Station(4, "group", group.group.name, state, f"{count(group.lag, 'record')} behind{age}")
        )
    return found
