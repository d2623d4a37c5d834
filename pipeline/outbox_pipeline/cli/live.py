"""Show a running watch: drawn on a terminal, as log lines elsewhere, as JSON documents with --json."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

import click
from rich.console import Console
from rich.live import Live

from outbox_connectors import quantities
from outbox_connectors.errors import ExitCode, UsageError
from outbox_connectors.signals import Stopping
from outbox_pipeline.cli import Invocation, output
from outbox_pipeline.operations import maintenance
from outbox_pipeline.standard_output import reader_gone
from outbox_pipeline.watch import document, history, notify, view
from outbox_pipeline.watch.live import RunningWatch, WatchOptions
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.serve import address

STATUS_LINE_SECONDS = 60.0  # without a change a log line with the status is written this often


def run(
    invocation: Invocation,
    *,
    interval_seconds: float,
    serve: str,
    on_change: str,
    notify_url: str,
    repeat: str,
    tick: bool,
    observe: bool | None,
    tidy_every: str,
    keep_history: bool,
) -> int:
    """Watch until SIGTERM or Ctrl-C."""
    definition = invocation.definition()
    if serve:
        address(serve)
    options = WatchOptions(
        interval_seconds=interval_seconds,
        serve=serve,
        on_change=on_change,
        notify_url=notify.check_webhook(notify_url) if notify_url else "",
        repeat_seconds=_seconds(repeat, "--repeat"),
        tick=tick,
        observe=observe,
        tidy=partial(maintenance.maintain, definition, _discard) if tidy_every else None,
        tidy_seconds=_seconds(tidy_every, "--tidy-every") if tidy_every else 0.0,
        history_file=history.file_of(os.environ, definition.pipeline, definition.source)
        if keep_history
        else None,
    )
    console = Console()
    drawn = console.is_terminal and not invocation.json
    watch = RunningWatch(definition, options, output.progress)
    live = Live(console=console, auto_refresh=False, screen=False, transient=False) if drawn else None
    lines = _Lines(watch, invocation.json)

    def show(answer: Assessment) -> None:
        if live is not None:
            live.update(view.screen(answer, watch.state.changes, console.width), refresh=True)
        else:
            lines.show(answer)

    with Stopping(watch.stop), live or nullcontext():
        watch.run(show)
    return ExitCode.OK


def _discard(line: str) -> None:
    """Drop the steps of maintenance; only its result is logged."""


def _seconds(text: str, option: str) -> float:
    try:
        found: timedelta = quantities.duration(text)
    except ValueError as error:
        raise UsageError(str(error), where=option, remedy="for example 30m or 4h") from error
    return found.total_seconds()


class _Lines:
    """Writes changes of verdict, and the status at intervals in between."""

    def __init__(self, watch: RunningWatch, as_json: bool) -> None:
        self._watch, self._json = watch, as_json
        self._changes_written = 0
        self._reader_gone = False
        self._written_at = float("-inf")

    def show(self, answer: Assessment) -> None:
        changed = self._watch.state.counts.changes
        now = time.monotonic()
        if changed != self._changes_written:
            self._changes_written, self._written_at = changed, now
            self._write(answer, view.log_line(self._watch.state.changes[-1]))
        elif now - self._written_at >= STATUS_LINE_SECONDS:
            self._written_at = now
            self._write(answer, view.status_line(answer))

    def _write(self, answer: Assessment, line: str) -> None:
        if self._json:
            found = document.status(answer.facts, answer.verdict)
            line = json.dumps(found, default=str, ensure_ascii=False)
        click.echo(line)
        if reader_gone() and not self._reader_gone:
            self._reader_gone = True
            output.progress("nobody reads stdout any more; the watch continues until SIGTERM or Ctrl-C")
