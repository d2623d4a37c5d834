"""`outboxctl watch`: monitor a pipeline, send its ticks and run the maintenance of its outbox."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from dataclasses import asdict
from types import FrameType
from typing import NoReturn

import click
import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_connectors.errors import ExitCode, Failed, Refused, UsageError
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.connect.message_gate import MessageGate
from outbox_pipeline.servers import postgres
from outbox_pipeline.watch import heartbeat


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two samples.",
)
@click.option(
    "--serve", metavar="HOST:PORT", default="", help="Serve /metrics, /healthz, /status.json and a page."
)
@click.option(
    "--on-change",
    metavar="CMD",
    default="",
    help="Run this shell command at each change of verdict, with the status as JSON on its stdin.",
)
@click.option(
    "--notify",
    metavar="URL",
    default="",
    envvar="OUTBOX_NOTIFY_URL",
    help="Post changes of verdict to this webhook.",
)
@click.option(
    "--repeat",
    metavar="DURATION",
    default="4h",
    show_default=True,
    help="Interval after which a lasting problem is reported again.",
)
@click.option(
    "--observe/--no-observe",
    default=None,
    help="Write nothing: no ticks, no partitions, no pruning. The default for a connector that "
    "apply did not create.",
)
@click.option("--no-tick", is_flag=True, help="Send no ticks; another process sends them.")
@click.option("--no-tidy", is_flag=True, help="Run no maintenance: create no partitions and prune nothing.")
@click.option(
    "--tidy-every",
    metavar="DURATION",
    default="6h",
    show_default=True,
    help="Interval between maintenance runs of the outbox.",
)
@click.option("--no-history", is_flag=True, help="Neither read nor write the history file.")
@click.option("--tick-only", is_flag=True, help="Send the ticks that keep the slot moving, and nothing else.")
@click.option("--once", is_flag=True, help="With --tick-only: send one tick and exit.")
@pass_invocation
def watch(
    invocation: Invocation,
    interval: float,
    serve: str,
    on_change: str,
    notify: str,
    repeat: str,
    observe: bool | None,
    no_tick: bool,
    no_tidy: bool,
    tidy_every: str,
    no_history: bool,
    tick_only: bool,
    once: bool,
) -> int:
    """Monitor the pipeline and keep its slot moving, until SIGTERM or Ctrl-C.

    Sends a tick (a logical message) each `watch.ticker`, which keeps an idle slot moving and measures the
    latency from commit to Kafka, and reports each change of verdict. On a terminal the status is redrawn with
    each sample; elsewhere changes are written as log lines. A server that goes away is waited for.

    Each --tidy-every runs the maintenance of the outbox: a table partitioned by day gets the partitions of
    the coming week, and rows older than outbox.keep are removed as with prune. A failure is only logged.

    A tick is sent only if the live connector captures the definition's prefixes and nothing else, and the
    topic of its messages exists: without that topic the connector would wait for it for ever.
    A connector that apply did not create is only observed, unless --no-observe: nothing is written.

    Needs a role that may connect to the database; pg_monitor lets it see more. Maintenance needs the
    table's owner.
    """
    definition = invocation.definition()
    if once and not tick_only:
        raise UsageError("--once goes with --tick-only")
    if observe and tick_only:
        raise UsageError("--observe and --tick-only exclude each other")
    if not tick_only:
        from outbox_pipeline.cli import live  # rich and the HTTP server, which ticking does not need

        return live.run(
            invocation,
            interval_seconds=interval,
            serve=serve,
            on_change=on_change,
            notify_url=notify,
            repeat=repeat,
            tick=not no_tick,
            observe=observe,
            tidy_every="" if no_tidy else tidy_every,
            keep_history=not no_history,
        )
    return _tick_only(invocation, definition, once, observe)


def _tick_only(invocation: Invocation, definition: Definition, once: bool, observe: bool | None) -> int:
    if definition.watch.ticker is None:
        raise UsageError(
            "watch.ticker is off: the connector sends its own heartbeat",
            where=definition.source,
            remedy="set watch.ticker: 10s and run apply, or do not run watch --tick-only",
        )
    ticks = heartbeat.Ticks()
    if once:
        _tick_once(definition, ticks, observe)
    else:
        _tick_until_stopped(definition, definition.watch.ticker.total_seconds(), ticks, observe)
    if invocation.json:
        output.json_document(asdict(ticks))
    else:
        output.line(f"ticks sent: {ticks.sent}, failed: {ticks.failed}, last at {ticks.last_lsn or '-'}")
    return ExitCode.OK


def _connect(definition: Definition) -> psycopg.Connection[TupleRow]:
    return postgres.as_admin(definition, heartbeat.APPLICATION_NAME)


def _tick_once(definition: Definition, ticks: heartbeat.Ticks, observe: bool | None) -> None:
    with _connect(definition) as conn:
        with closing(MessageGate(definition)) as gate:
            reason = gate.why_not(definition.heartbeat_prefix, only_ours=observe is None)
        if reason:
            raise Refused(f"no tick is sent: {reason}", remedy="see outboxctl plan")
        try:
            ticks.last_lsn = heartbeat.tick(conn, definition.heartbeat_prefix)
        except psycopg.Error as error:
            raise Failed(
                f"no tick: {' '.join(str(error).split())}",
                where=f"database {definition.postgres.connector.database}",
            ) from error
    ticks.sent = 1


def _tick_until_stopped(
    definition: Definition, interval_seconds: float, ticks: heartbeat.Ticks, observe: bool | None
) -> None:
    output.progress(f"ticking every {interval_seconds:g} s with the prefix {definition.heartbeat_prefix}")
    # Both signals interrupt a sleep and a statement alike: nothing of a tick can be half done.
    before = signal.signal(signal.SIGTERM, _interrupt)
    gate = MessageGate(definition)
    try:
        heartbeat.run(
            lambda: _connect(definition),
            definition.heartbeat_prefix,
            interval_seconds=interval_seconds,
            stopped=lambda: False,
            sleep=time.sleep,
            clock=time.monotonic,
            report=output.progress,
            ticks=ticks,
            why_not=lambda: gate.why_not(definition.heartbeat_prefix, only_ours=observe is None),
        )
    except KeyboardInterrupt:
        output.progress("stopped")
    finally:
        gate.close()
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
