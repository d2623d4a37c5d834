"""`outboxctl alerts`: Prometheus alert rules, filled with this pipeline's names."""

from __future__ import annotations

import click

from outbox_connectors.errors import ExitCode
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.watch import alerting


@click.command()
@click.option(
    "--postgres-exporter",
    is_flag=True,
    help="Print rules for postgres_exporter instead of the watch.",
)
@pass_invocation
def alerts(invocation: Invocation, postgres_exporter: bool) -> int:
    """Print Prometheus alert rules with the definition's names and limits.

    outboxctl alerts > outbox-alerts.yml && promtool check rules outbox-alerts.yml
    """
    file = alerting.POSTGRES_EXPORTER if postgres_exporter else alerting.OWN
    text = alerting.rules(invocation.definition(), file)
    if invocation.json:
        output.json_document({"file": file, "rules": text})
    else:
        output.line(text.rstrip("\n"))
    return ExitCode.OK
