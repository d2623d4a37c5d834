"""`outboxctl init`: a definition file to start with."""

from __future__ import annotations

import click

from outbox_connectors import starting_file
from outbox_connectors.errors import ExitCode
from outbox_pipeline.cli import Invocation, output, pass_invocation


@click.command()
@click.argument("pipeline")
@click.option("--database", metavar="NAME", help="The database of the outbox; PIPELINE if not given.")
@click.option("--dry-run", is_flag=True, help="Print the file and write nothing.")
@pass_invocation
def init(invocation: Invocation, pipeline: str, database: str | None, dry_run: bool) -> int:
    """Write a commented definition file for PIPELINE, to -f FILE. Never overwrites one.

    The name becomes that of slot, publication, connector and topics, and of the connector's role.
    """
    content = starting_file.text(pipeline, database=database or pipeline)
    if not dry_run:
        starting_file.write(invocation.file, content)
    if invocation.json:
        document = {"file": str(invocation.file), "pipeline": pipeline, "written": not dry_run}
        output.json_document({**document, "content": content})
    elif dry_run:
        output.line(content.rstrip("\n"))
    else:
        output.line(f"written: {invocation.file}")
        output.progress("next: read it, then outboxctl plan and outboxctl apply")
    return ExitCode.OK
