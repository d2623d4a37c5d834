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
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve /health and /metrics on this address; each further process uses the next port.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Minimum level of the log on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log as text, or as one JSON object per line with the event's id, aggregate and attempt.",
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

    MODULE is searched for in the current folder first. The open transaction is finished before the command
    ends. A worker process that dies is restarted. A Consumer uses at most one worker per partition; a
    DurableInbox runs a receiver in addition to its workers.
    """
    _log(log_level, log_format)
    address = _address(listen) if listen else None
    sys.path.insert(0, str(Path.cwd()))
    app = application.load(reference)
    app.run(workers, address)
    if invocation.json:
        alone = workers == 1 and isinstance(app, Consumer)
        counters = app.counters.document() if alone else None  # several processes each have their own
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
