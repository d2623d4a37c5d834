"""`outboxctl dead-letters`: look at events and jobs that were given up, and decide."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import psycopg

from outbox_connectors.errors import Failed, UsageError
from outbox_consumers.failures import administration, dead_letter
from outbox_consumers.inbox.claims import DEFAULT_TABLE, inbox_missing
from outbox_pipeline.cli import Invocation, consumer_database, outbox_dead_letters, output, pass_invocation

_OPTIONS = (
    click.option("--dsn", default="", help="libpq connection string of the consumer's database; see PG*."),
    click.option("--table", default=DEFAULT_TABLE, show_default=True, help="The inbox they belong to."),
    click.option("--consumer", metavar="NAME", help="Only this consumer's."),
    click.option("--type", "event_type", metavar="TYPE", help="Only this event type."),
    click.option("--key", metavar="TEXT", help="Only this aggregate's."),
    click.option("--id", "event_id", type=click.UUID, help="Only this event."),
    click.option("--error", metavar="TEXT", help="Only those whose error contains this."),
    click.option("--since", metavar="TIME", help="Only those that failed since then, ISO 8601."),
    click.option("--max", "limit", type=click.IntRange(min=1), metavar="N", help="At most so many."),
)


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose dead letters, as one `wanted`."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        consumer: str | None,
        event_type: str | None,
        key: str | None,
        event_id: object,
        error: str | None,
        since: str | None,
        limit: int | None,
        **kwargs: Any,
    ) -> None:
        moment = _moment(since)
        wanted = dead_letter.DeadLetterFilter(
            consumer, event_type, key, str(event_id) if event_id else None, moment, error, limit
        )
        command(*args, wanted=wanted, **kwargs)

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since {text}: not an ISO 8601 time", remedy="write 2026-01-31T12:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@click.group("dead-letters")
def dead_letters() -> None:
    """Look at events and jobs that were given up: redrive or discard them."""


dead_letters.add_command(outbox_dead_letters.outbox)


@dead_letters.command("list")
@_filters
@pass_invocation
def list_(invocation: Invocation, dsn: str, table: str, wanted: dead_letter.DeadLetterFilter) -> None:
    """List dead letters and dead jobs, oldest first."""
    with _session(dsn, "list", table) as conn:
        found = _find(conn, wanted, table)
    if invocation.json:
        output.json_document([_summary(letter) for letter in found])
        return
    rows = [
        [f"{x['last_failed_at']:%Y-%m-%d %H:%M:%S}", x["kind"], x["consumer"], x["event_type"],
         _text(x["key"]) or "-", str(x["event_id"]), str(x["attempts"]), _short(x["error"])]
        for x in found
    ]  # fmt: skip
    output.table(rows, ["FAILED", "KIND", "CONSUMER", "TYPE", "KEY", "ID", "TRIES", "ERROR"])


@dead_letters.command()
@_filters
@pass_invocation
def show(invocation: Invocation, dsn: str, table: str, wanted: dead_letter.DeadLetterFilter) -> None:
    """Show dead letters whole: where from, why, headers and payload."""
    with _session(dsn, "show", table) as conn:
        found = _find(conn, wanted, table)
    if invocation.json:
        output.json_document([_whole(letter) for letter in found])
        return
    for letter in found:
        for name, value in _whole(letter).items():
            if name != "headers":
                output.line(f"{name:>16}  {value if value is not None else '-'}")
        for name, value in letter["headers"]:
            output.line(f"{'header':>16}  {name}: {value if value is not None else '-'}")
        output.line()


@dead_letters.command()
@_filters
@click.option("--rate", type=click.FloatRange(min=0), default=0.0, help="So many per second; 0: all at once.")
@click.option("--dry-run", is_flag=True, help="Say which, change nothing.")
@pass_invocation
def redrive(
    invocation: Invocation,
    dsn: str,
    table: str,
    wanted: dead_letter.DeadLetterFilter,
    rate: float,
    dry_run: bool,
) -> None:
    """Give dead letters back to their consumer, with their old ids, in order per aggregate.

    The running consumer takes them from its table within about a second, the workers of a durable inbox
    their jobs. One that still fails comes back here.
    """
    with _session(dsn, "redrive", table) as conn, conn.transaction():
        found = _find(conn, wanted, table)
        if not dry_run and found:
            administration.redrive(conn, found, table, rate)
    _say(invocation, found, "redriven", dry_run)


@dead_letters.command()
@_filters
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say which, change nothing.")
@pass_invocation
def discard(
    invocation: Invocation,
    dsn: str,
    table: str,
    wanted: dead_letter.DeadLetterFilter,
    yes: bool,
    dry_run: bool,
) -> None:
    """Forget dead letters for good. Their events stay marked as handled."""
    with _session(dsn, "discard", table) as conn:
        found = _find(conn, wanted, table)
        if found and not dry_run:
            if not yes:
                click.confirm(f"Discard {len(found)} dead letters for good?", abort=True, err=True)
            with conn.transaction():
                administration.discard(conn, found, table)
    _say(invocation, found, "discarded", dry_run)


def _session(dsn: str, verb: str, table: str) -> psycopg.Connection:
    return consumer_database.connect(dsn, f"dead-letters {verb}", table)


def _find(conn: psycopg.Connection, wanted: dead_letter.DeadLetterFilter, table: str) -> list[dict[str, Any]]:
    try:
        return administration.find(conn, wanted, table)
    except psycopg.errors.UndefinedTable:
        raise inbox_missing(f"{table}_dead_letter") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise Failed(
            str(error).splitlines()[0], remedy="run outboxctl inbox init --grant <this role>"
        ) from None


def _say(invocation: Invocation, found: list[dict[str, Any]], done: str, dry_run: bool) -> None:
    if invocation.json:
        output.json_document({done: [str(x["event_id"]) for x in found], "applied": not dry_run})
        return
    output.line(f"{len(found)} dead letters " + (f"would be {done}" if dry_run else done))


def _summary(letter: dict[str, Any]) -> dict[str, Any]:
    whole = _whole(letter)
    return {name: whole[name] for name in whole if name not in ("headers", "payload")}


def _whole(letter: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": letter["kind"],
        "consumer": letter["consumer"],
        "event_id": str(letter["event_id"]),
        "event_type": letter["event_type"],
        "key": _text(letter["key"]),
        "record": f"{letter['topic']}/{letter['partition']}/{letter['offset']}",
        "attempts": letter["attempts"],
        "first_failed_at": letter["first_failed_at"].isoformat(),
        "last_failed_at": letter["last_failed_at"].isoformat(),
        "error": letter["error"],
        "headers": letter["headers"],
        "payload": _text(letter["payload"]),
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode("utf-8", "backslashreplace")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
