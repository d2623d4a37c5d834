"""`outboxctl watch`: the process that keeps a pipeline alive."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict
from types import FrameType
from typing import NoReturn

import click
import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_connectors.errors import ExitCode, Failed, UsageError
from outbox_pipeline import postgres, ticker
from outbox_pipeline.cli import Invocation, output, pass_invocation


@click.command()
@click.option("--tick-only", is_flag=True, help="Send the ticks that keep the slot moving, and nothing else.")
@click.option("--once", is_flag=True, help="Send one tick and end.")
@pass_invocation
def watch(invocation: Invocation, tick_only: bool, once: bool) -> int:
    """Keep the pipeline alive: a tick through the log each `watch.ticker`, until SIGTERM or Ctrl-C.

    Needs a role that may connect to the database, nothing more. A server that goes away is waited
    for; missed ticks are not made up for. With --json one document is printed at the end.
    """
    if not tick_only:
        raise UsageError("this version of watch only ticks", remedy="say watch --tick-only")
    definition = invocation.definition()
    if definition.watch.ticker is None:
        raise UsageError(
            "watch.ticker is off: the connector sends its own heartbeat",
            where=definition.source,
            remedy="set watch.ticker: 10s and run apply, or do not run watch --tick-only",
        )
    ticks = ticker.Ticks()
    if once:
        _tick_once(definition, ticks)
    else:
        _tick_until_told(definition, definition.watch.ticker.total_seconds(), ticks)
    if invocation.json:
        output.json_document(asdict(ticks))
    else:
        output.line(f"ticks sent: {ticks.sent}, failed: {ticks.failed}, last at {ticks.last_lsn or '-'}")
    return ExitCode.OK


def _connect(definition: Definition) -> psycopg.Connection[TupleRow]:
    return postgres.connect(
        definition.postgres.admin,
        application_name=ticker.APPLICATION_NAME,
        dbname=definition.postgres.connector.database,
    )


def _tick_once(definition: Definition, ticks: ticker.Ticks) -> None:
    with _connect(definition) as conn:
        try:
            ticks.last_lsn = ticker.tick(conn, definition.heartbeat_prefix)
        except psycopg.Error as error:
            raise Failed(
                f"no tick: {' '.join(str(error).split())}",
                where=f"database {definition.postgres.connector.database}",
            ) from error
    ticks.sent = 1


def _tick_until_told(definition: Definition, interval_seconds: float, ticks: ticker.Ticks) -> None:
    output.progress(f"ticking every {interval_seconds:g} s with the prefix {definition.heartbeat_prefix}")
    # Both signals interrupt a sleep and a statement alike: nothing of a tick can be half done.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        ticker.run(
            lambda: _connect(definition),
            definition.heartbeat_prefix,
            interval_seconds=interval_seconds,
            stopped=lambda: False,
            sleep=time.sleep,
            clock=time.monotonic,
            report=output.progress,
            ticks=ticks,
        )
    except KeyboardInterrupt:
        output.progress("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
