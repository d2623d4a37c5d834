"""`outboxctl status`: whether the pipeline is healthy, and if not, why and how long until events are lost."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any

import click

from outbox_connectors.errors import ExitCode
from outbox_connectors.findings import Severity
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.watch import document, history, stages
from outbox_pipeline.watch.one_shot import Assessment, look
from outbox_pipeline.watch.sampling import Sampler
from outbox_pipeline.watch.thresholds import thresholds_of

COLOURS = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "red"}
NAGIOS = {Severity.OK: (0, "OK"), Severity.WARNING: (1, "WARNING"), Severity.CRITICAL: (2, "CRITICAL")}


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=2.0,
    show_default=True,
    help="Seconds between the two samples that rates are computed from.",
)
@click.option("--evidence", is_flag=True, help="Show the server state that the verdict is based on.")
@click.option(
    "--nagios", is_flag=True, help="Print one line with performance data for Nagios; exits 0, 1, 2 or 3."
)
@click.option("--no-history", is_flag=True, help="Neither read nor write the history file.")
@pass_invocation
def status(invocation: Invocation, interval: float, evidence: bool, nagios: bool, no_history: bool) -> int:
    """Show the state of the pipeline: the verdict first, then each stage that an event passes.

    Reads only. Exits 0 when nothing is wrong, 4 or 5 by the severity, 6 when no server answers.
    """
    definition = invocation.definition()
    file = None if no_history else history.file_of(os.environ, definition.pipeline, definition.source)
    with Sampler.of(definition) as sampler:
        answer = look(
            sampler,
            thresholds_of(definition.watch),
            interval_seconds=interval,
            history_file=file,
            sleep=time.sleep,
        )
    if nagios:
        return _nagios(answer)
    if invocation.json:
        output.json_document(_document(answer, evidence))
    else:
        _print(answer, evidence)
    return ExitCode.UNREACHABLE if answer.nothing_seen else answer.verdict.severity.exit_code


def _document(answer: Assessment, evidence: bool) -> dict[str, Any]:
    found = document.status(answer.facts, answer.verdict)
    if evidence:
        found["sample"] = _rows(answer)
    return found


def _rows(answer: Assessment) -> dict[str, Any]:
    """The samples of PostgreSQL and Connect, field by field."""
    postgres, connect = answer.facts.postgres, answer.facts.connect
    return {
        "postgres": asdict(postgres) if postgres else None,
        "connect": asdict(connect) if connect else None,
    }


def _print(answer: Assessment, evidence: bool) -> None:
    verdict = answer.verdict
    key = click.style(
        f"{verdict.severity.value}: {verdict.key.value}", fg=COLOURS[verdict.severity], bold=True
    )
    output.line(f"{key}: {verdict.cause}")
    if verdict.next_step:
        output.line(f"  do: {verdict.next_step}")
    for found in verdict.findings:
        output.line(f"  also {found.severity.value}: {found.key.value}: {found.cause}")
    for unseen in verdict.unseen:
        output.line(
            f"  not seen: {unseen.source}: {unseen.reason}" + (f"; {unseen.remedy}" if unseen.remedy else "")
        )
    for note in verdict.notes:
        output.line(f"  note: {note}")
    output.line()
    for line in stages.lines(answer.facts, output.width()):
        output.line(line)
    if evidence:
        output.line()
        _print_rows(_rows(answer), "")


def _print_rows(value: object, path: str) -> None:
    """Print nested values, one per line, `slots.0.name = shop_outbox`."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _print_rows(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple)) and value:
        for number, inner in enumerate(value):
            _print_rows(inner, f"{path}.{number}")
    else:
        output.line(f"{path} = {'-' if value in (None, ()) else value}")


def _nagios(answer: Assessment) -> int:
    verdict, facts = answer.verdict, answer.facts
    code, word = (3, "UNKNOWN") if answer.nothing_seen else NAGIOS[verdict.severity]
    left = facts.left.earliest if facts.left else None
    limits = facts.thresholds
    numbers = [
        ("retained", facts.retained, "B;;;0"),
        ("unconfirmed", facts.unconfirmed, "B;;;0"),
        ("seconds_left", left, f"s;{limits.warn_left:.0f}:;{limits.critical_left:.0f}:;0"),
        *((f"lag_{group.group.name}", group.lag, ";;;0") for group in facts.groups),
    ]
    performance = " ".join(
        f"'{name}'={value:.0f}{tail}" for name, value, tail in numbers if value is not None
    )
    cause = verdict.cause.replace("|", "/")
    output.line(
        f"OUTBOX {word} - {verdict.key.value}: {cause}" + (f" | {performance}" if performance else "")
    )
    return code
