"""`outboxctl consume`: run a consumer application."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from outbox_connectors.errors import UsageError
from outbox_consumers import Consumer, application
from outbox_consumers.processes.json_log import JsonLines
from outbox_pipeline.cli import Invocation, output, pass_invocation


@click.command()
@click.argument("reference", metavar="MODULE:APP")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="So many processes."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve /health and /metrics there; each further process takes the next port.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What to log on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How: for people, or one JSON object a line, with the event's id, aggregate and attempt.",
)
@pass_invocation
def consume(
    invocation: Invocation,
    reference: str,
    workers: int,
    listen: str | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run the application APP of MODULE, a Consumer or a DurableInbox, until SIGTERM or Ctrl-C.

    MODULE is looked for in the current folder first. The transaction at hand is finished before the
    command ends. A worker that dies is started again. More workers of a Consumer than partitions have
    nothing to do; a DurableInbox has a receiver beside its workers.
    """
    _log(log_level, log_format)
    address = _address(listen) if listen else None
    sys.path.insert(0, str(Path.cwd()))
    app = application.load(reference)
    app.run(workers, address)
    if invocation.json:
        alone = workers == 1 and isinstance(app, Consumer)
        counters = app.counters.document() if alone else None  # else each process has its own
        output.json_document({"consumer": app.name, "workers": workers, "counters": counters})


def _log(level: str, form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(process)d %(levelname)-7s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {text}: not HOST:PORT", remedy="write 127.0.0.1:9100")
    return host.strip("[]") or "127.0.0.1", int(port)
