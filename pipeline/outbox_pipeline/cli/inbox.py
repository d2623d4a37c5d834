"""`outboxctl inbox`: the table in which a consumer remembers what it has handled."""

from __future__ import annotations

import click
import psycopg

from outbox_connectors.definition import Secret
from outbox_connectors.errors import Failed
from outbox_consumers import schema
from outbox_consumers.inbox import DEFAULT_TABLE
from outbox_pipeline import postgres
from outbox_pipeline.cli import Invocation, output, pass_invocation


@click.group()
def inbox() -> None:
    """Create and inspect a consumer's inbox table."""


@inbox.command()
@click.option(
    "--dsn", default="", help="libpq connection string; PG* variables and ~/.pgpass fill in what is missing."
)
@click.option("--table", default=DEFAULT_TABLE, show_default=True, help="Name, with or without a schema.")
@click.option("--grant", "roles", multiple=True, metavar="ROLE", help="Let this role consume. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, change nothing.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the statements for somebody else to run.")
@pass_invocation
def init(
    invocation: Invocation, dsn: str, table: str, roles: tuple[str, ...], dry_run: bool, as_sql: bool
) -> None:
    """Create the inbox table in the consumer's own database. Running it again changes nothing."""
    todo = schema.steps(table, roles)
    if as_sql:
        _show_sql(invocation, todo)
        return
    with postgres.connect(Secret(dsn), application_name="outboxctl inbox init") as conn:
        missing = schema.missing(conn, table)
        if not dry_run:
            _apply(conn, todo)
    _show(invocation, todo, missing, dry_run)


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
