"""`outboxctl consume`: run a consumer application."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outbox_connectors.errors import UsageError
from outbox_consumers import application, health
from outbox_consumers.durable.fleet import Fleet, Task
from outbox_consumers.json_log import JsonLines
from outbox_pipeline.cli import Invocation, output, pass_invocation

if TYPE_CHECKING:
    from outbox_consumers import Consumer

DRAIN_SECONDS = 30.0


@click.command()
@click.argument("reference", metavar="MODULE:APP")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="So many processes."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve /health and /metrics there; each further worker takes the next port.",
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
    """Run the consumer application APP of MODULE until SIGTERM or Ctrl-C.

    MODULE is looked for in the current folder first. The transaction at hand is finished before the
    command ends. More workers than partitions have nothing to do. One that dies is started again.
    """
    _log(log_level, log_format)
    address = _address(listen) if listen else None
    sys.path.insert(0, str(Path.cwd()))
    app = application.load(reference)
    if workers == 1:
        _run(app, address)
    else:
        tasks = {f"{app.name}-{n + 1}": _task(app, _next(address, n)) for n in range(workers)}
        Fleet(tasks, lambda name: None, DRAIN_SECONDS).run(threading.Event())
    if invocation.json:
        counters = app.counters.document() if workers == 1 else None
        output.json_document({"consumer": app.name, "workers": workers, "counters": counters})


def _log(level: str, form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(process)d %(levelname)-7s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _run(app: Consumer, address: tuple[str, int] | None) -> None:
    with ExitStack() as port:
        if address:
            port.enter_context(health.serving(app.watched, *address))
        app.run()


def _task(app: Consumer, address: tuple[str, int] | None) -> Task:
    def task(name: str, stopping: Callable[[], bool]) -> None:
        watcher = threading.Thread(target=_stop_when, args=(stopping, app.stop), daemon=True)
        watcher.start()
        _run(app, address)

    return task


def _stop_when(stopping: Callable[[], bool], stop: Callable[[], None]) -> None:
    """End the consumer also when its parent is gone."""
    pause = threading.Event()
    while not stopping():
        pause.wait(0.5)
    stop()


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {text}: not HOST:PORT", remedy="write 127.0.0.1:9100")
    return host.strip("[]") or "127.0.0.1", int(port)


def _next(address: tuple[str, int] | None, number: int) -> tuple[str, int] | None:
    return (address[0], address[1] + number) if address else None
