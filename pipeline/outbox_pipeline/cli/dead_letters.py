"""`outboxctl dead-letters`: list, redrive and discard dead letters and dead jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
import psycopg

from outbox_connectors.errors import Failed
from outbox_consumers.failures import administration, dead_letter
from outbox_consumers.inbox.claims import DEFAULT_TABLE, inbox_missing
from outbox_pipeline.cli import Invocation, consumer_database, outbox_dead_letters, output, pass_invocation
from outbox_pipeline.cli.moments import moment

_OPTIONS = (
    click.option(
        "--dsn",
        default="",
        help="libpq connection string of the consumer's database; PG* variables supply what is missing.",
    ),
    click.option("--table", default=DEFAULT_TABLE, show_default=True, help="Name of the inbox table."),
    click.option("--consumer", metavar="NAME", help="Only dead letters of this consumer."),
    click.option("--type", "event_type", metavar="TYPE", help="Only events of this type."),
    click.option("--key", metavar="TEXT", help="Only events with this key."),
    click.option("--id", "event_id", type=click.UUID, help="Only the event with this id."),
    click.option("--error", metavar="TEXT", help="Only dead letters whose error contains this text."),
    click.option("--since", metavar="TIME", help="Only events that failed at or after this time (ISO 8601)."),
    click.option(
        "--max", "limit", type=click.IntRange(min=1), metavar="N", help="Maximum number of dead letters."
    ),
)


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select dead letters to a command, passed as one argument `wanted`."""

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
        wanted = dead_letter.DeadLetterFilter(
            consumer,
            event_type,
            key,
            str(event_id) if event_id else None,
            moment(since) if since else None,
            error,
            limit,
        )
        command(*args, wanted=wanted, **kwargs)

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return wrapper


@click.group("dead-letters")
def dead_letters() -> None:
    """List, redrive and discard dead letters of consumers and dead jobs of durable inboxes."""


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
    """Show dead letters completely: record, error, headers and payload."""
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
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0.0, help="Events per second; 0 means all at once."
)
@click.option("--dry-run", is_flag=True, help="Show how many, change nothing.")
@pass_invocation
def redrive(
    invocation: Invocation,
    dsn: str,
    table: str,
    wanted: dead_letter.DeadLetterFilter,
    rate: float,
    dry_run: bool,
) -> None:
    """Return dead letters to their consumer, with their ids, in order per key.

    A running consumer or worker takes them within about a second. An event that fails again becomes a dead
    letter again.
    """
    with _session(dsn, "redrive", table) as conn, conn.transaction():
        found = _find(conn, wanted, table)
        if not dry_run and found:
            administration.redrive(conn, found, table, rate)
    _say(invocation, found, "redriven", dry_run)


@dead_letters.command()
@_filters
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show how many, change nothing.")
@pass_invocation
def discard(
    invocation: Invocation,
    dsn: str,
    table: str,
    wanted: dead_letter.DeadLetterFilter,
    yes: bool,
    dry_run: bool,
) -> None:
    """Delete dead letters. Their events still count as handled."""
    with _session(dsn, "discard", table) as conn:
        found = _find(conn, wanted, table)
        if found and not dry_run:
            if not yes:
                click.confirm(f"Delete {len(found)} dead letters permanently?", abort=True, err=True)
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
