"""`outboxctl replay`: publish retained events again."""

from __future__ import annotations

from typing import TextIO
from uuid import UUID

import click

from outbox_connectors.errors import ExitCode, UsageError
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.cli.moments import moment
from outbox_pipeline.operations import replay
from outbox_pipeline.servers import postgres


@click.command("replay")
@click.option("--id", "ids", type=click.UUID, multiple=True, help="Id of an event. Repeatable.")
@click.option(
    "--ids-from", type=click.File("r"), help="File with one event id per line; - is standard input."
)
@click.option("--since", metavar="TIME", help="Only events that occurred since then, ISO 8601.")
@click.option("--aggregate", nargs=2, metavar="TYPE ID", help="Only events of this aggregate.")
@click.option("--reason", required=True, metavar="TEXT", help="Reason, kept in the log of replays.")
@click.option(
    "--rate",
    type=click.FloatRange(min=1),
    default=1000.0,
    show_default=True,
    help="Events per second.",
)
@click.option("--dry-run", is_flag=True, help="Count them, publish nothing.")
@pass_invocation
def replay_(
    invocation: Invocation,
    ids: tuple[UUID, ...],
    ids_from: TextIO | None,
    since: str | None,
    aggregate: tuple[str, str] | None,
    reason: str,
    rate: float,
    dry_run: bool,
) -> int:
    """Publish retained events again, with the same ids; consumers skip those they have applied.

    An event must match every given option. The table OUTBOX_replay records who replayed what,
    when and why.
    """
    definition = invocation.definition()
    named = [*ids, *(_ids(ids_from) if ids_from else ())]
    kind, key = aggregate or (None, None)
    selection = replay.Selection(named or None, moment(since) if since else None, kind, key)
    with postgres.as_admin(definition, "outboxctl replay") as conn:
        count = replay.replay(
            conn, definition, selection, reason, rate=rate, dry_run=dry_run, say=output.progress
        )
    if invocation.json:
        output.json_document({"events": count, "published": not dry_run, "selection": str(selection)})
    else:
        output.line(f"{count:,} events {'would be ' if dry_run else ''}published again")
    return ExitCode.OK


def _ids(file: TextIO) -> list[UUID]:
    found = []
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                found.append(UUID(line.strip()))
            except ValueError:
                raise UsageError(f"{line.strip()[:60]!r} is no id", where=f"{file.name}:{number}") from None
    return found
