"""The watch on a terminal: verdict, stages, two curves, recent changes. Pure: data in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from outbox_connectors.findings import Severity
from outbox_pipeline.watch import stages
from outbox_pipeline.watch.formatting import duration, size, span
from outbox_pipeline.watch.history import Point
from outbox_pipeline.watch.long_running import VerdictChange
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.verdict import Verdict

STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE = 40
BAR = 20


def sparkline(values: Sequence[float], width: int = CURVE) -> str:
    """Draw values as blocks, the newest on the right; the tallest is the largest of them."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return BLOCKS[1] * len(shown)
    return "".join(BLOCKS[1 + round((len(BLOCKS) - 2) * max(0.0, value) / top)] for value in shown)


def bar(part: float, width: int = BAR) -> str:
    """Draw a part of one as a bar."""
    filled = round(max(0.0, min(1.0, part)) * width)
    return "█" * filled + "░" * (width - filled)


def curve(points: Sequence[Point], value: Callable[[Point], int | None]) -> list[float]:
    """Turn a growing number into rates between neighbouring points."""
    known = [(point.at, found) for point in points if (found := value(point)) is not None]
    pairs = pairwise(known)
    return [max(0.0, (b - a) / (at - before)) for (before, a), (at, b) in pairs if at > before]


def screen(answer: Assessment, changes: Sequence[VerdictChange], width: int) -> RenderableType:
    """Draw everything, to be read at 80 columns and not to break at 40."""
    facts, verdict = answer.facts, answer.verdict
    parts: list[RenderableType] = [_verdict(verdict)]
    parts += [Text(f"not seen: {unseen.source}: {unseen.reason}", "yellow") for unseen in verdict.unseen]
    parts += [Text(f"note: {note}", "dim") for note in verdict.notes]
    drawn = stages.lines(facts, width)
    parts += [Text(), *(Text(line, no_wrap=True, overflow="ellipsis") for line in drawn), Text()]
    parts.append(_curves(answer, max(8, min(CURVE, width - 40))))
    if changes:
        parts += [Text(), Text("changes", "bold")]
        parts += [_change(change) for change in reversed(changes[-6:])]
    return Group(*parts)


def _verdict(verdict: Verdict) -> Text:
    text = Text(f"{verdict.severity.value}: {verdict.key.value}", STYLES[verdict.severity])
    text.append(f": {verdict.cause}", "default")
    if verdict.next_step:
        text.append(f"\n  do: {verdict.next_step}", "default")
    for found in verdict.findings:
        text.append(f"\n  also {found.severity.value}: {found.key.value}: {found.cause}", "dim")
    return text


def _curves(answer: Assessment, width: int) -> Table:
    facts = answer.facts
    table = Table(box=None, show_header=False, padding=(0, 1))
    wal = curve(facts.points, lambda point: point.wal)
    lag = [
        float(max(0, point.wal - point.confirmed))
        for point in facts.points
        if point.wal is not None and point.confirmed is not None
    ]
    table.add_row("WAL", f"{size(facts.wal_rate or 0)}/s", sparkline(wal, width))
    table.add_row("lag", size(facts.unconfirmed or 0), sparkline(lag, width))
    cap = facts.postgres.server.settings.slot_cap_bytes if facts.postgres else None
    if cap and facts.retained is not None:
        table.add_row("kept", f"{size(facts.retained)} of {size(cap)}", bar(facts.retained / cap, width))
    for reserve in facts.reserve[:2]:
        what = "lost in" if facts.left else "would last"
        if reserve.expected is not None:
            table.add_row(what, reserve.end.value, span(reserve.earliest, reserve.expected))
    if facts.sample.canary_seconds is not None:
        table.add_row("tick", f"{facts.sample.canary_seconds * 1000:.0f} ms", "commit to Kafka")
    return table


def _change(change: VerdictChange) -> Text:
    at = datetime.fromtimestamp(change.at).strftime("%H:%M:%S")
    text = Text(f"{at} ", "dim")
    text.append(change.verdict.key.value, STYLES[change.verdict.severity])
    return text


def log_line(change: VerdictChange) -> str:
    """Write a change of verdict as one line of a log."""
    at = datetime.fromtimestamp(change.at).astimezone().isoformat(timespec="seconds")
    step = f"; do: {change.verdict.next_step}" if change.verdict.next_step else ""
    verdict = change.verdict
    return f"{at} {verdict.severity.value} {verdict.key.value}: {verdict.cause}{step}"


def status_line(answer: Assessment) -> str:
    """Write the present status as one line of a log."""
    facts = answer.facts
    at = datetime.fromtimestamp(facts.sample.at).astimezone().isoformat(timespec="seconds")
    parts = [f"{size(facts.unconfirmed)} unconfirmed"] if facts.unconfirmed is not None else []
    if facts.left is not None and facts.left.expected is not None:
        parts.append(f"{facts.left.end.value} in {duration(facts.left.expected)}")
    if facts.sample.canary_seconds is not None:
        parts.append(f"commit to Kafka {facts.sample.canary_seconds * 1000:.0f} ms")
    words = ", ".join(parts) or "nothing seen"
    return f"{at} {answer.verdict.severity.value} {answer.verdict.key.value}: {words}"
