"""`outboxctl inbox`: the table in which a consumer remembers what it has handled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import psycopg

from outbox_connectors import quantities
from outbox_connectors.errors import Failed, UsageError
from outbox_consumers import application, durable
from outbox_consumers.inbox import retention, schema
from outbox_consumers.inbox.claims import DEFAULT_TABLE, inbox_missing
from outbox_pipeline.cli import Invocation, consumer_database, output, pass_invocation


@click.group()
def inbox() -> None:
    """Create and inspect a consumer's inbox table."""


@inbox.command()
@click.option(
    "--dsn", default="", help="libpq connection string; PG* variables and ~/.pgpass fill in what is missing."
)
@click.option("--table", default=DEFAULT_TABLE, show_default=True, help="Name, with or without a schema.")
@click.option("--grant", "roles", multiple=True, metavar="ROLE", help="Let this role consume. Repeatable.")
@click.option("--durable", "with_jobs", is_flag=True, help="Also the tables of a DurableInbox.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, change nothing.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the statements for somebody else to run.")
@pass_invocation
def init(
    invocation: Invocation,
    dsn: str,
    table: str,
    roles: tuple[str, ...],
    with_jobs: bool,
    dry_run: bool,
    as_sql: bool,
) -> None:
    """Create the inbox table in the consumer's own database. Running it again changes nothing."""
    todo = schema.steps(table, roles) + (durable.steps(table, roles) if with_jobs else ())
    if as_sql:
        _show_sql(invocation, todo)
        return
    with _session(dsn, "init", table) as conn:
        missing = schema.missing(conn, table) + durable.missing(conn, table)
        if not dry_run:
            _apply(conn, todo)
    _show(invocation, todo, missing, dry_run)


@inbox.command()
@click.option("--dsn", default="", help="libpq connection string; see PG*.")
@click.option("--table", default=DEFAULT_TABLE, show_default=True, help="Name, with or without a schema.")
@pass_invocation
def status(invocation: Invocation, dsn: str, table: str) -> None:
    """Show what the inbox holds: consumers, partitions, window, jobs. Reads the whole inbox."""
    with _session(dsn, "status", table) as conn, _explained(table):
        parts = retention.partitions(conn, table)
        who = retention.consumers(conn, table)
        window = retention.window_start(conn, table)
        queues = _queues(conn, table)
    since = retention.day_of(UUID(bytes=window)).isoformat() if window else None
    if invocation.json:
        output.json_document(
            {
                "table": table,
                "forgotten_before": since,
                "consumers": who,
                "partitions": [
                    {"name": p.name, "day": p.day, "bytes": p.bytes, "rows": p.rows} for p in parts
                ],
                "queues": queues,
            }
        )
        return
    output.table(
        [[w["consumer"], f"{w['events']:,}", f"{w['first_received']:%Y-%m-%d %H:%M}",
          f"{w['last_received']:%Y-%m-%d %H:%M}"] for w in who],
        ["CONSUMER", "EVENTS", "FIRST", "LAST"],
    )  # fmt: skip
    output.line()
    output.table(
        [[p.name, str(p.day or "other ids"), f"{p.rows:,}", f"{p.bytes / 1e6:.1f} MB"] for p in parts],
        ["PARTITION", "DAY", "ROWS", "SIZE"],
    )
    output.line()
    output.line(f"forgotten: everything before {since}" if since else "forgotten: nothing yet")
    for queue in queues:
        output.line()
        output.line(f"jobs of {queue['consumer']}, {queue['workers']} workers at work")
        output.table(
            [
                [state, f"{n['jobs']:,}", f"{n['oldest_seconds']:,.0f} s"]
                for state, n in queue["states"].items()
            ],
            ["STATE", "JOBS", "OLDEST"],
        )


def _queues(conn: psycopg.Connection, table: str) -> list[dict[str, Any]]:
    """Count the jobs of durable inboxes, if there are any."""
    if durable.missing(conn, table):
        return []
    states, workers = durable.states(conn, table), durable.workers(conn, table)
    return [
        {
            "consumer": consumer,
            "workers": workers.get(consumer, 0),
            "states": {
                state: {"jobs": count.jobs, "oldest_seconds": round(count.oldest, 3)}
                for state, count in states.get(consumer, {}).items()
            },
        }
        for consumer in sorted({*states, *workers})
    ]


@inbox.command()
@click.argument("reference", metavar="MODULE:APP")
@click.option(
    "--keep", metavar="DURATION", help="Remember so long, for example '14 days'; never less than the topics."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, change nothing.")
@pass_invocation
def maintain(invocation: Invocation, reference: str, keep: str | None, dry_run: bool) -> None:
    """Make the next days' partitions and drop those that no topic can still deliver.

    How long to remember is derived from the retention of APP's topics, plus a day. Run it once a day as
    the owner of the inbox.
    """
    sys.path.insert(0, str(Path.cwd()))
    app = application.load(reference)
    window = app.window(_duration(keep) if keep else None)
    pruned = 0
    with _session(app.dsn.value, "maintain", app.table) as conn, _explained(app.table):
        todo = retention.plan(retention.partitions(conn, app.table), datetime.now(UTC), window)
        if not dry_run:
            pruned = retention.maintain(conn, app.table, todo)
    _show_maintenance(invocation, todo, window, pruned, dry_run)


def _show_maintenance(
    invocation: Invocation,
    todo: retention.RetentionPlan,
    window: timedelta | None,
    pruned: int,
    dry_run: bool,
) -> None:
    made, dropped = [day.isoformat() for day in todo.create], [p.name for p in todo.drop]
    if invocation.json:
        output.json_document(
            {
                "window_seconds": window.total_seconds() if window else None,
                "created": made,
                "dropped": dropped,
                "pruned": pruned,
                "applied": not dry_run,
            }
        )
        return
    would = "would be " if dry_run else ""
    output.line(f"window: {window.total_seconds() / 86400:g} days" if window else "window: for ever")
    output.line(f"days {would}made: {', '.join(made) or 'none'}")
    output.line(f"partitions {would}dropped: {', '.join(dropped) or 'none'}")
    if not dry_run:
        output.line(f"rows without a time in their id pruned: {pruned}")


@inbox.command()
@click.option("--dsn", default="", help="libpq connection string; see PG*.")
@click.option("--table", default=DEFAULT_TABLE, show_default=True, help="Name, with or without a schema.")
@click.option("--consumer", required=True, metavar="NAME", help="Whose events to forget.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the journal.")
@click.option("--id", "ids", type=click.UUID, multiple=True, help="Forget this event. Repeatable.")
@click.option("--since", metavar="TIME", help="Forget events from then on, by the time in their ids.")
@click.option("--until", metavar="TIME", help="Forget events before then.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Count, change nothing.")
@pass_invocation
def forget(
    invocation: Invocation,
    dsn: str,
    table: str,
    consumer: str,
    reason: str,
    ids: tuple[UUID, ...],
    since: str | None,
    until: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Let events be handled again, on purpose: their effects happen once more when they are delivered."""
    if bool(ids) == bool(since or until):
        raise UsageError("say which events", remedy="give --id, or --since and --until")
    if not yes and not dry_run:
        click.confirm(f"Let {consumer} handle these events again?", abort=True, err=True)
    moments = {"since": _moment("--since", since), "until": _moment("--until", until)}
    with _session(dsn, "forget", table) as conn, _explained(table), conn.transaction(force_rollback=dry_run):
        forgotten = retention.forget(conn, table, consumer, reason, ids=ids, **moments)
    if invocation.json:
        output.json_document({"forgotten": forgotten, "applied": not dry_run})
        return
    output.line(f"{forgotten} events " + ("would be forgotten" if dry_run else "forgotten"))


def _session(dsn: str, verb: str, table: str) -> psycopg.Connection:
    return consumer_database.connect(dsn, f"inbox {verb}", table)


def _duration(text: str) -> timedelta:
    try:
        return quantities.duration(text)
    except ValueError as error:
        raise UsageError(f"--keep: {error}", remedy="write '14 days'") from None


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text}: not an ISO 8601 time", remedy="write 2026-01-31T12:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@contextmanager
def _explained(table: str) -> Iterator[None]:
    """Turn what PostgreSQL says into one line with a remedy."""
    try:
        yield
    except psycopg.errors.UndefinedTable:
        raise inbox_missing(table) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise Failed(str(error).splitlines()[0], remedy="run it as the owner of the inbox") from None
    except psycopg.errors.LockNotAvailable:
        raise Failed("the inbox is busy", remedy="run it again: what was done stays done") from None


def _apply(conn: psycopg.Connection, todo: tuple[schema.Step, ...]) -> None:
    try:
        schema.apply(conn, todo)
    except psycopg.errors.InsufficientPrivilege as error:
        raise Failed(
            str(error).splitlines()[0], remedy="let an owner of the schema run it, see --sql"
        ) from None
    except psycopg.Error as error:
        raise Failed(str(error).splitlines()[0]) from error


def _show_sql(invocation: Invocation, todo: tuple[schema.Step, ...]) -> None:
    if invocation.json:
        output.json_document({"statements": [step.statement for step in todo]})
        return
    for step in todo:
        output.line(step.statement.rstrip() + ";")


def _show(
    invocation: Invocation, todo: tuple[schema.Step, ...], missing: tuple[str, ...], dry_run: bool
) -> None:
    objects = [
        {"kind": step.kind, "name": step.name, "state": _state(step, missing), "statement": step.statement}
        for step in todo
    ]
    if invocation.json:
        output.json_document({"objects": objects, "applied": not dry_run})
        return
    words = {"present": "present", "missing": "would be created" if dry_run else "created"}
    for found in objects:
        output.line(f"{found['kind']} {found['name']}: {words[found['state']]}")


def _state(step: schema.Step, missing: tuple[str, ...]) -> str:
    return "missing" if step.kind != "table" or step.name in missing else "present"
