"""`outboxctl doctor`: known traps on the live system."""

from __future__ import annotations

import click

from outbox_connectors.findings import Finding, Severity
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.cli.provision import systems
from outbox_pipeline.provision import doctor as examination

_COLOURS = {Severity.WARNING: "yellow", Severity.CRITICAL: "red", Severity.OK: "green"}


@click.command()
@pass_invocation
def doctor(invocation: Invocation) -> int:
    """Check server, privileges, connector and versions for known traps.

    Each finding is one line of cause and one of remedy. Exits 0 when there is none, 4 or 5 by the worst
    of them, 6 when something could not be looked at.
    """
    definition = invocation.definition()
    with systems(definition) as (conn, client):
        report = examination.examine(conn, client, definition)
    if invocation.json:
        output.json_document(report.document())
        return report.exit_code
    for found in report.findings:
        _print(found)
    for unseen in report.unseen:
        output.warning(f"not looked at: {unseen}")
    if not report.findings and not report.unseen:
        output.line("no known trap found")
    return report.exit_code


def _print(found: Finding) -> None:
    severity = click.style(found.severity.ljust(8), fg=_COLOURS[found.severity])
    output.line(f"{severity}  {found.code}: {found.cause}")
    if found.remedy:
        output.line(f"{'':8}  do: {found.remedy}")
    output.line(f"{'':8}  source: {found.source}")
