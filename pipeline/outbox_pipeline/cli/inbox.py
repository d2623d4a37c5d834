"""`outboxctl inbox`: the table in which a consumer records the events it has handled."""

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
from outbox_pipeline.cli.moments import moment


@click.group()
def inbox() -> None:
    """Create and inspect a consumer's inbox table."""


@inbox.command()
@click.option(
    "--dsn", default="", help="libpq connection string; PG* variables and ~/.pgpass supply what is missing."
)
@click.option(
    "--table",
    default=DEFAULT_TABLE,
    show_default=True,
    help="Name of the inbox table, with or without a schema.",
)
@click.option(
    "--grant",
    "roles",
    multiple=True,
    metavar="ROLE",
    help="Grant this role what a consumer needs. Repeatable.",
)
@click.option("--durable", "with_jobs", is_flag=True, help="Create the tables of a DurableInbox, too.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL statements instead of running them.")
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
    """Create the inbox table in the consumer's database. Running the command again changes nothing."""
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
@click.option("--dsn", default="", help="libpq connection string; PG* variables supply what is missing.")
@click.option(
    "--table",
    default=DEFAULT_TABLE,
    show_default=True,
    help="Name of the inbox table, with or without a schema.",
)
@pass_invocation
def status(invocation: Invocation, dsn: str, table: str) -> None:
    """Show the consumers, partitions, window and jobs of an inbox. Reads the whole table."""
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
        output.line(f"jobs of {queue['consumer']}, {queue['workers']} workers running")
        output.table(
            [
                [state, f"{n['jobs']:,}", f"{n['oldest_seconds']:,.0f} s"]
                for state, n in queue["states"].items()
            ],
            ["STATE", "JOBS", "OLDEST"],
        )


def _queues(conn: psycopg.Connection, table: str) -> list[dict[str, Any]]:
    """Count the jobs of durable inboxes, if their tables exist."""
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
    "--keep",
    metavar="DURATION",
    help="How long to keep ids, for example '14 days'; not shorter than the retention of the topics.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
@pass_invocation
def maintain(invocation: Invocation, reference: str, keep: str | None, dry_run: bool) -> None:
    """Create the partitions of the next days and drop those whose events no topic can still deliver.

    By default ids are kept for the retention of APP's topics plus one day. Run it once a day as the owner
    of the inbox.
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
    output.line(f"window: {window.total_seconds() / 86400:g} days" if window else "window: unlimited")
    output.line(f"days {would}created: {', '.join(made) or 'none'}")
    output.line(f"partitions {would}dropped: {', '.join(dropped) or 'none'}")
    if not dry_run:
        output.line(f"rows without a time in their id pruned: {pruned}")


@inbox.command()
@click.option("--dsn", default="", help="libpq connection string; PG* variables supply what is missing.")
@click.option(
    "--table",
    default=DEFAULT_TABLE,
    show_default=True,
    help="Name of the inbox table, with or without a schema.",
)
@click.option("--consumer", required=True, metavar="NAME", help="Name of the consumer.")
@click.option("--reason", required=True, metavar="TEXT", help="Reason, stored in the journal.")
@click.option("--id", "ids", type=click.UUID, multiple=True, help="Id of an event to forget. Repeatable.")
@click.option(
    "--since", metavar="TIME", help="Forget events from this time on, by the time in their ids (ISO 8601)."
)
@click.option("--until", metavar="TIME", help="Forget events before this time (ISO 8601).")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show how many, change nothing.")
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
    """Forget that events were handled: when they are delivered again, their effects happen again."""
    if bool(ids) == bool(since or until):
        raise UsageError("say which events", remedy="give --id, or --since and --until")
    if not yes and not dry_run:
        click.confirm(f"Let {consumer} handle these events again?", abort=True, err=True)
    limits = {
        "since": moment(since, "--since") if since else None,
        "until": moment(until, "--until") if until else None,
    }
    with _session(dsn, "forget", table) as conn, _explained(table), conn.transaction(force_rollback=dry_run):
        forgotten = retention.forget(conn, table, consumer, reason, ids=ids, **limits)
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


@contextmanager
def _explained(table: str) -> Iterator[None]:
    """Turn errors of PostgreSQL into one line with a remedy."""
    try:
        yield
    except psycopg.errors.UndefinedTable:
        raise inbox_missing(table) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise Failed(str(error).splitlines()[0], remedy="run it as the owner of the inbox") from None
    except psycopg.errors.LockNotAvailable:
        raise Failed("the inbox is busy", remedy="run it again; completed steps are kept") from None


def _apply(conn: psycopg.Connection, todo: tuple[schema.Step, ...]) -> None:
    try:
        schema.apply(conn, todo)
    except psycopg.errors.InsufficientPrivilege as error:
        raise Failed(
            str(error).splitlines()[0],
            remedy="let an owner of the schema run the statements that --sql prints",
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
