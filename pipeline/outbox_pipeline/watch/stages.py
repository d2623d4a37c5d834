"""The stages that an event passes, drawn as a tree of text: table, slot, connector, topics, groups."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

from outbox_pipeline.servers import lsn
from outbox_pipeline.watch.facts import Facts, GroupFacts
from outbox_pipeline.watch.formatting import count, duration, number, size, span
from outbox_pipeline.watch.verdict import Unseen

TOPICS_SHOWN = 12
HARD_SPACE = "\xa0"  # where a line is not broken


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the pipeline: its kind, name, state and numbers."""

    depth: int
    kind: str
    name: str
    state: str
    numbers: str


def stages_of(facts: Facts) -> list[Stage]:
    """List the stages in the order in which an event passes them."""
    return [_table(facts), _slot(facts), _connector(facts), *_topics(facts), *_groups(facts)]


def tree(facts: Facts) -> list[Stage]:
    """List the stages as a tree: a group comes below each topic it reads, with its lag there.

    A group that has read nothing yet comes after the topics, at their level, since it may read any of them.
    """
    groups = _groups(facts)
    found = [_table(facts), _slot(facts), _connector(facts)]
    placed: set[str] = set()
    for topic in _topics(facts):
        found.append(topic)
        readers = [_reader(facts, group, topic.name) for group in facts.groups if _reads(group, topic.name)]
        placed |= {reader.name for reader in readers}
        found += readers
    return found + [replace(group, depth=3) for group in groups if group.name not in placed]


def lines(facts: Facts, width: int | None = None) -> list[str]:
    """Draw the stages, aligned in columns; where that is wider than `width`, over several lines each."""
    found = tree(facts)
    labels = [
        f"{_branch(found, place)}{found[place].kind} {found[place].name}" for place in range(len(found))
    ]
    names = max(len(label) for label in labels)
    states = max(len(stage.state) for stage in found)
    drawn = [
        f"{label.ljust(names)}  {stage.state.ljust(states)}  {stage.numbers}".rstrip()
        for label, stage in zip(labels, found, strict=True)
    ]
    if width is None or max(map(len, drawn)) <= width:
        return drawn
    return [line for place in range(len(found)) for line in _narrow(found, place, labels[place], width)]


def _branch(found: list[Stage], place: int) -> str:
    """Draw the branches in front of a stage's name."""
    depth = found[place].depth
    if depth == 0:
        return ""
    above = ["│ " if _goes_on(found, place, level) else "  " for level in range(1, depth)]
    return "".join(above) + ("├ " if _goes_on(found, place, depth) else "└ ")


def _goes_on(found: list[Stage], place: int, level: int) -> bool:
    """Whether a later stage belongs to the same branch at this level."""
    for later in found[place + 1 :]:
        if later.depth <= level:
            return later.depth == level
    return False


def _narrow(found: list[Stage], place: int, label: str, width: int) -> Iterator[str]:
    """Draw a stage over several lines: its name, and indented below it state and numbers."""
    stage = found[place]
    yield label if len(label) <= width else f"{label[: width // 2]}…{label[len(label) - (width - 1) // 2 :]}"
    below = place + 1 < len(found) and found[place + 1].depth > stage.depth
    stem = "".join("│ " if _goes_on(found, place, level) else "  " for level in range(1, stage.depth + 1))
    stem += "│ " if below else "  "
    said = ", ".join(part for part in (stage.state, stage.numbers) if part)
    room = width - len(stem) - 1
    whole = [part.replace(" ", HARD_SPACE) if len(part) <= room else part for part in said.split(", ")]
    for line in textwrap.wrap(", ".join(whole), width, initial_indent=stem, subsequent_indent=stem):
        yield line.replace(HARD_SPACE, " ")


def _table(facts: Facts) -> Stage:
    outbox = facts.postgres.outbox if facts.postgres else None
    if outbox is None:
        return Stage(0, "table", facts.names.table, _absent(facts.sample.postgres), "")
    rate = f"{number(facts.insert_rate)} rows/s" if facts.insert_rate is not None else "rate unknown"
    # Both estimates are 0 until the first vacuum.
    parts = [f"about {count(max(outbox.estimated_rows, outbox.live), 'row')}"]
    if outbox.bytes:
        parts.append(size(outbox.bytes))
    if outbox.oldest_seconds is not None:
        parts.append(f"oldest {duration(outbox.oldest_seconds)}")
    return Stage(0, "table", facts.names.table, rate, ", ".join(parts))


def _absent(seen: object) -> str:
    return "not seen" if isinstance(seen, Unseen) or seen is None else "missing"


def _slot(facts: Facts) -> Stage:
    slot = facts.slot
    if slot is None:
        return Stage(1, "slot", facts.names.slot, _absent(facts.sample.postgres), "")
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
    return Stage(1, "slot", slot.name, state, ", ".join(parts))


def _connector(facts: Facts) -> Stage:
    connect, name = facts.connect, facts.names.connector
    if connect is None:
        return Stage(2, "connector", name, _absent(facts.sample.connect), "")
    if connect.state is None:
        return Stage(2, "connector", name, "missing", "")
    tasks = ", ".join(task.state for task in connect.tasks) or "no task"
    at = f"stored {lsn.text(connect.offset_lsn)}" if connect.offset_lsn is not None else "nothing stored yet"
    kind = f" ({connect.offset_type})" if connect.offset_type else ""
    return Stage(2, "connector", name, f"{connect.state}, task {tasks}", f"{at}{kind}")


def _topics(facts: Facts) -> list[Stage]:
    kafka = facts.kafka
    if kafka is None:
        names = facts.names.topics[:TOPICS_SHOWN]
        return [Stage(3, "topic", name, _absent(facts.sample.kafka), "") for name in names]
    ends: dict[str, int] = {}
    for (topic, _), end in kafka.ends.items():
        ends[topic] = ends.get(topic, 0) + end
    shown = sorted(ends)[:TOPICS_SHOWN]
    found = [Stage(3, "topic", name, "", f"{count(ends[name], 'record')} so far") for name in shown]
    if len(ends) > TOPICS_SHOWN:
        found.append(Stage(3, "topics", f"{len(ends) - TOPICS_SHOWN} more", "", ""))
    return found + [Stage(3, "topic", name, "missing", "") for name in kafka.missing_topics]


def _groups(facts: Facts) -> list[Stage]:
    if facts.kafka is None:
        return [Stage(4, "group", name, _absent(facts.sample.kafka), "") for name in facts.names.groups]
    return [_group(group, group.lag) for group in facts.groups]


def _group(group: GroupFacts, lag: int) -> Stage:
    state = f"{group.group.state.lower()}, {count(group.group.members, 'member')}"
    age = f", oldest {duration(group.lag_seconds)}" if lag and group.lag_seconds is not None else ""
    return Stage(4, "group", group.group.name, state, f"{count(lag, 'record')} behind{age}")


def _reads(group: GroupFacts, topic: str) -> bool:
    return topic in group.group.assigned or any(name == topic for name, _ in group.group.committed)


def _reader(facts: Facts, group: GroupFacts, topic: str) -> Stage:
    """A group below one of its topics."""
    kafka = facts.kafka
    assert kafka is not None
    behind = 0
    for partition, end in kafka.ends.items():
        if partition[0] == topic:
            behind += max(0, end - group.group.committed.get(partition, kafka.starts.get(partition, 0)))
    return _group(group, behind)
