"""`outboxctl consume`: run a consumer application."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from outbox_consumers import application
from outbox_pipeline.cli import Invocation, output, pass_invocation


@click.command()
@click.argument("reference", metavar="MODULE:APP")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What to log on stderr.",
)
@pass_invocation
def consume(invocation: Invocation, reference: str, log_level: str) -> None:
    """Run the consumer application APP of MODULE until SIGTERM or Ctrl-C.

    MODULE is looked for in the current folder first. The transaction at hand is finished before the
    command ends. Start as many processes as you like, up to one per partition.
    """
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(message)s"
    )
    sys.path.insert(0, str(Path.cwd()))
    app = application.load(reference)
    app.run()
    if invocation.json:
        output.json_document({"consumer": app.name, "counters": app.counters.document()})
