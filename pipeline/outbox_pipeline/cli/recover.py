"""`outboxctl recover`: a slot is lost, a server was failed over or restored; what now?"""

from __future__ import annotations

import click

from outbox_connectors.errors import ExitCode
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.cli.moments import moment
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.operations import recover
from outbox_pipeline.servers import postgres


@click.command("recover")
@click.option("--since", metavar="TIME", help="Check only events that occurred since then, ISO 8601.")
@click.option(
    "--rate",
    type=click.FloatRange(min=1),
    default=5000.0,
    show_default=True,
    help="Events per second.",
)
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    default=recover.SETTLE_SECONDS,
    show_default=True,
    help="Seconds to wait for events in flight before they count as missing.",
)
@click.option("--dry-run", is_flag=True, help="Show what is broken and what would be done, change nothing.")
@pass_invocation
def recover_(invocation: Invocation, since: str | None, rate: float, settle: float, dry_run: bool) -> int:
    """Repair a pipeline after a lost slot, a failover or a restore, and prove it by ids.

    Stops the connector, creates the slot again, publishes the rows that no topic has, in their order,
    starts the connector and audits. Run it again after an interruption. Exits 5 when an event is still
    missing.
    """
    definition = invocation.definition()
    begin = None if since is None else moment(since)
    with (
        postgres.as_admin(definition, "outboxctl recover") as conn,
        ConnectClient(definition.connect) as client,
    ):
        found = recover.plan(conn, client, definition)
        _show(found)
        if dry_run:
            if invocation.json:
                output.json_document({**found.document(), "dry_run": True})
            return ExitCode.OK
        done = recover.recover(
            conn, client, definition, since=begin, rate=rate, settle_seconds=settle, say=output.progress
        )
    report = done.report
    if invocation.json:
        output.json_document(done.document())
    else:
        output.line(
            f"{done.published:,} events published; written {report.written:,}  "
            f"delivered {report.delivered:,}  missing {report.missing:,}  "
            f"duplicated {report.duplicated:,}  unexpected {report.unexpected:,}"
        )
        if report.unexpected:
            output.warning("records without a row: of rows that were pruned, or events that a restore undid")
    return done.exit_code


def _show(found: recover.RecoveryPlan) -> None:
    output.progress(f"{'broken' if found.broken else 'not broken'}: {found.cause}")
    for number, step in enumerate(found.steps, 1):
        output.progress(f"  {number}. {step}")
