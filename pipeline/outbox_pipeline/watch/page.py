"""One small page: the verdict on top, below it the pipeline as a picture. Pure: an assessment in, HTML out.

No script is needed to read it and nothing is fetched from elsewhere. With scripts it updates itself
in place; without, the browser reloads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from outbox_connectors.findings import Severity
from outbox_pipeline.watch.formatting import duration
from outbox_pipeline.watch.long_running import VerdictChange
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.stages import Stage, stages_of
from outbox_pipeline.watch.verdict import Verdict, VerdictKey

REFRESH_SECONDS = 3
WIDTH = 380
BOX_HEIGHT = 74
GAP = 30
BESIDE = 8  # between topics or groups: an event passes only one of them

# The stage that a verdict marks in the picture; other verdicts mark none.
_PLACES = {
    "table": {
        VerdictKey.TABLE_MISSING,
        VerdictKey.TABLE_NOT_PUBLISHED,
        VerdictKey.PUBLICATION_MISSING,
        VerdictKey.OUTBOX_NOT_VACUUMABLE,
        VerdictKey.POSTGRES_UNREACHABLE,
    },
    "slot": {
        VerdictKey.SLOT_LOST,
        VerdictKey.SLOT_MISSING,
        VerdictKey.SLOT_FOREIGN,
        VerdictKey.RESCUE_WINDOW,
        VerdictKey.SLOT_TAKEN,
        VerdictKey.DECODE_LOOP,
        VerdictKey.PINNED_BY_TRANSACTION,
        VerdictKey.HEARTBEAT_MISSING,
        VerdictKey.WAL_UNBOUNDED,
        VerdictKey.UNEXPLAINED_WAL,
        VerdictKey.CATALOG_XMIN_OLD,
        VerdictKey.SLOTS_NEARLY_FULL,
        VerdictKey.FAILOVER_NOT_READY,
        VerdictKey.CATCHING_UP,
    },
    "connector": {
        VerdictKey.MESSAGE_TOO_LARGE,
        VerdictKey.TASK_FAILED,
        VerdictKey.CONNECTOR_PAUSED,
        VerdictKey.CONNECTOR_STOPPED,
        VerdictKey.CONSUMER_DOWN,
        VerdictKey.CONSUMER_FROZEN,
        VerdictKey.CONNECT_UNREACHABLE,
        VerdictKey.OFFSET_AHEAD_OF_SLOT,
        VerdictKey.OFFSET_BEHIND_SLOT,
        VerdictKey.OFFSET_UNREADABLE,
    },
    "topic": {VerdictKey.SINK_NOT_ACKING, VerdictKey.KAFKA_UNREACHABLE},
    "group": {VerdictKey.GROUP_LAGGING, VerdictKey.GROUP_STOPPED},
}

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2129;--soft:#5b6472;--paper:#fff;--line:#c9d0da;
--ok:#1a7f4b;--warning:#9a6200;--critical:#c0272d}
@media(prefers-color-scheme:dark){:root{--ink:#e8ebf0;--soft:#a3adbb;--paper:#15181d;--line:#3b4450;
--ok:#4cc38a;--warning:#e5b454;--critical:#ff7b7b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.45 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:16px}
@media(min-width:900px){.sides{display:grid;grid-template-columns:minmax(0,1fr) 440px;column-gap:32px;
grid-template-rows:auto 1fr}.pipeline{grid-column:2;grid-row:1/span 2}}
h1{font-size:1rem;font-weight:600;color:var(--soft);margin:0 0 12px}
.verdict{border-left:6px solid var(--tone);padding:4px 0 4px 14px;margin-bottom:16px;overflow-wrap:anywhere}
.verdict strong{display:block;font-size:1.5rem;line-height:1.2;color:var(--tone)}
.verdict p{margin:6px 0 0}
code{font:14px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}
svg{display:block;width:100%;max-width:460px;height:auto}
svg text{fill:var(--ink);font:15px system-ui,sans-serif}
svg .name{font-weight:600}svg .soft{fill:var(--soft);font-size:13px}
svg rect{fill:var(--paper);stroke:var(--line);stroke-width:1.5}
svg rect.ok{stroke:var(--ok)}svg rect.warning{stroke:var(--warning);stroke-width:3}
svg rect.critical{stroke:var(--critical);stroke-width:3}
svg path{stroke:var(--soft);stroke-width:1.5;fill:none}
ul{padding-left:20px;margin:8px 0 16px}li{margin:4px 0;overflow-wrap:anywhere}
h2{font-size:1rem;margin:20px 0 4px}
time,footer{color:var(--soft);font-size:.875rem}
.ok{--tone:var(--ok)}.warning{--tone:var(--warning)}.critical{--tone:var(--critical)}
"""

_SCRIPT = """
(function(){var seconds=%d;
async function renew(){try{
 var answer=await fetch('fragment',{cache:'no-store'});
 if(!answer.ok)throw new Error(answer.status);
 document.querySelector('main').innerHTML=await answer.text();
 document.title=document.querySelector('.verdict strong').textContent;
}catch(error){var foot=document.querySelector('footer');
 if(foot)foot.textContent='The watch does not answer; this is the last status it sent.';}
setTimeout(renew,seconds*1000);}
setTimeout(renew,seconds*1000);})();
"""


def page(answer: Assessment | None, changes: Sequence[VerdictChange]) -> str:
    """Write the whole page."""
    title = f"{answer.verdict.key.value} - {answer.facts.names.pipeline}" if answer else "outbox"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<noscript><meta http-equiv="refresh" content="{REFRESH_SECONDS}"></noscript>'
        '<link rel="icon" href="data:,"></head>'
        f'<body><main aria-live="polite">{fragment(answer, changes)}</main>'
        f"<script>{_SCRIPT % REFRESH_SECONDS}</script></body></html>"
    )


def fragment(answer: Assessment | None, changes: Sequence[VerdictChange]) -> str:
    """Write the part of the page that is updated."""
    if answer is None:
        return (
            '<div class="verdict warning"><strong>waiting</strong><p>No sample has been taken yet.</p></div>'
        )
    verdict, facts = answer.verdict, answer.facts
    parts = [f"<h1>Pipeline {escape(facts.names.pipeline)}</h1>"]
    left = [_verdict(verdict)]
    left.append(_list("Also", [f"{f.severity.value}: {f.key.value}: {f.cause}" for f in verdict.findings]))
    left.append(_list("Not seen", [f"{u.source}: {u.reason}" for u in verdict.unseen]))
    left.append(_list("Notes", list(verdict.notes)))
    left.append(_changes(changes))
    pipeline = picture(stages_of(facts), verdict)
    parts.append(f'<div class="sides"><div>{left[0]}</div>')
    parts.append(f'<div class="pipeline">{pipeline}</div><div>{"".join(left[1:])}</div></div>')
    at = datetime.fromtimestamp(facts.sample.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    links = '<a href="status.json">JSON</a> <a href="metrics">metrics</a>'
    parts.append(f"<footer>Seen at {at} UTC. {links}</footer>")
    return "".join(parts)


def _verdict(verdict: Verdict) -> str:
    step = f"<p>Next: <code>{escape(verdict.next_step)}</code></p>" if verdict.next_step else ""
    left = verdict.seconds_left
    words = ""
    if left is not None and left.expected is not None and verdict.severity is not Severity.OK:
        what = "Slot lost" if left.end.value == "invalidation" else "Disk full"
        first = duration(left.earliest or left.expected)
        words = f"<p><b>{what} in {first} to {duration(left.expected)}</b></p>"
    return (
        f'<div class="verdict {verdict.severity.value}" role="status">'
        f"<strong>{escape(verdict.key.value)}</strong>"
        f"{words}<p>{escape(verdict.cause)}</p>{step}</div>"
    )


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _changes(changes: Sequence[VerdictChange]) -> str:
    lines = []
    for change in reversed(changes[-10:]):
        at = datetime.fromtimestamp(change.at, UTC).strftime("%H:%M:%S")
        lines.append(f"{at} {change.verdict.severity.value}: {change.verdict.key.value}")
    return _list("Changes", lines)


def picture(found: Sequence[Stage], verdict: Verdict) -> str:
    """Draw the stages from top to bottom, which fits a phone; the width follows the page."""
    marked = {kind: verdict.severity for kind, keys in _PLACES.items() if verdict.key in keys}
    for outranked in verdict.findings:
        for kind, keys in _PLACES.items():
            if outranked.key in keys:
                marked.setdefault(kind, outranked.severity)
    shapes = []
    y = 4
    for place, stage in enumerate(found):
        tone = marked.get(stage.kind, Severity.OK if stage.state != "not seen" else None)
        if place and found[place - 1].kind == stage.kind:
            y += BESIDE
        elif place:
            shapes.append(_arrow(WIDTH / 2, y + 2, y + GAP - 2))
            y += GAP
        shapes.append(_box(stage, y, tone))
        y += BOX_HEIGHT
    label = ", then ".join(f"{s.kind} {s.name} {s.state}".strip() for s in found)
    return (
        f'<svg viewBox="0 0 {WIDTH} {y + 4}" role="img" '
        f'aria-label="Pipeline: {escape(label, quote=True)}">'
        f"{''.join(shapes)}</svg>"
    )


def _box(stage: Stage, y: int, tone: Severity | None) -> str:
    name = f"{stage.kind} {stage.name}"
    return (
        f"<g><title>{escape(name)}: {escape(stage.state)} {escape(stage.numbers)}</title>"
        f'<rect class="{tone.value if tone else ""}" x="4" y="{y}" '
        f'width="{WIDTH - 8}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text x="18" y="{y + 24}" class="name">{escape(_cut(name, 40))}</text>'
        f'<text x="18" y="{y + 44}">{escape(_cut(stage.state or "there", 42))}</text>'
        f'<text class="soft" x="18" y="{y + 63}">{escape(_cut(stage.numbers, 54))}</text></g>'
    )


def _arrow(x: float, top: int, bottom: int) -> str:
    return f'<path d="M{x} {top}V{bottom}m-6 -8l6 8l6 -8"/>'


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
