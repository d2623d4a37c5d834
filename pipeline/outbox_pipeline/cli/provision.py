"""`outboxctl plan | apply | destroy | render`: what the definition asks for, and making it so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_connectors.errors import ExitCode, Failed, Unreachable, UsageError
from outbox_connectors.profile import Version, reasons
from outbox_connectors.profile import render as render_connector
from outbox_pipeline import provision
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.provision import destroy as destruction
from outbox_pipeline.provision import proof
from outbox_pipeline.servers import postgres
from outbox_pipeline.servers.plan import ObjectPlan, Plan, State, text_of

APPLICATION_NAME = "outboxctl"
# `plan` and `apply` must not hang for a minute on a worker that is not there.
CONNECT_PATIENCE_SECONDS = 10.0
LOOK_SECONDS = 15.0  # for one answer of Connect; a worker that has lost Kafka gives none for 90 s

_COLOURS = {State.PRESENT: "green", State.MISSING: "yellow", State.DIFFERENT: "yellow", State.BLOCKED: "red"}

_add_partitions = click.option(
    "--add-partitions",
    is_flag=True,
    help="Give topics the partitions asked for; moves keys to others.",
)


@contextmanager
def systems(
    definition: Definition, *, only_look: bool = False
) -> Iterator[tuple[psycopg.Connection[TupleRow], ConnectClient]]:
    """Open the database as the administrator, and a client of Connect that connects when it is asked."""
    database = definition.postgres.connector.database
    try:
        with (
            postgres.as_admin(definition, APPLICATION_NAME, only_look=only_look) as conn,
            ConnectClient(
                definition.connect, timeout=LOOK_SECONDS, patience=CONNECT_PATIENCE_SECONDS
            ) as client,
        ):
            yield conn, client
    except psycopg.OperationalError as error:
        problem = error.diag.message_primary or str(error)
        raise Unreachable(problem, where=f"PostgreSQL, database {database}", remedy="run it again") from error
    except psycopg.Error as error:
        problem = error.diag.message_primary or str(error)
        raise Failed(problem, where=f"PostgreSQL, database {database}") from error


@click.command()
@click.option("--sql", "as_sql", is_flag=True, help="Print the statements for PostgreSQL, for a DBA to run.")
@click.option("--verifier", is_flag=True, help="With --sql: set the role's password, as a SCRAM verifier.")
@_add_partitions
@pass_invocation
def plan(invocation: Invocation, as_sql: bool, verifier: bool, add_partitions: bool) -> int:
    """Show what differs between the definition and the live system. Changes nothing.

    Exits 0 when nothing differs, 3 when something does, 6 when something could not be looked at.
    """
    if verifier and not as_sql:
        raise UsageError("--verifier goes with --sql")
    definition = invocation.definition()
    with systems(definition, only_look=True) as (conn, client):
        found = provision.plan(conn, client, definition, add_partitions=add_partitions)
    if invocation.json:
        output.json_document(found.document())
    elif as_sql:
        _print_sql(found, verifier)
    else:
        _print_plan(found)
    return found.exit_code


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the task runs and a canary has arrived.")
@_add_partitions
@pass_invocation
def apply(invocation: Invocation, dry_run: bool, no_wait: bool, add_partitions: bool) -> int:
    """Create what is missing, change what can safely change, prove the way.

    Takes one object at a time and stops at the first that fails; run it again to go on. Never drops or
    narrows anything. Then waits until the connector's task has run steadily and a canary has travelled
    from PostgreSQL to Kafka.
    """
    definition = invocation.definition()
    with systems(definition) as (conn, client):
        if dry_run:
            found = provision.plan(conn, client, definition, add_partitions=add_partitions)
            if not invocation.json:
                _print_plan(found)
            provision.check(conn, client, definition, add_partitions=add_partitions)
            if invocation.json:
                output.json_document(found.document())
            return found.exit_code
        done = provision.apply(conn, client, definition, say=output.progress, add_partitions=add_partitions)
        proved = None if no_wait else _prove(conn, client, definition, done)
    _print_applied(invocation, done, proved)
    return ExitCode.OK


def _prove(
    conn: psycopg.Connection[TupleRow], client: ConnectClient, definition: Definition, done: Plan
) -> proof.Proof:
    # Where nothing was touched, the task has been running all the time.
    touched = any(found.state is not State.PRESENT for found in done.objects)
    steady = proof.STEADY_SECONDS if touched else 0.0
    output.progress(f"waiting until the task runs{f' {steady:.0f} s without a break' if touched else ''}")
    return proof.prove(conn, client, definition, steady_seconds=steady)


def _print_applied(invocation: Invocation, done: Plan, proved: proof.Proof | None) -> None:
    if invocation.json:
        document: dict[str, Any] = {**done.document(), "proof": None}
        if proved is not None:
            document["proof"] = {
                "steady_seconds": round(proved.steady_seconds, 3),
                "canary_seconds": round(proved.canary_seconds, 3),
            }
        output.json_document(document)
        return
    created = sum(found.state is State.MISSING for found in done.objects)
    changed = sum(found.state is State.DIFFERENT for found in done.objects)
    unchanged = len(done.objects) - created - changed
    output.line(f"applied: {created} created, {changed} changed, {unchanged} unchanged")
    if proved is not None:
        output.line(
            f"proved: task running after {proved.steady_seconds:.1f} s, canary from PostgreSQL to Kafka in "
            f"{proved.canary_seconds * 1000:.0f} ms"
        )


@click.command()
@click.option("--data", is_flag=True, help="Remove the topics and the outbox table too, with every event.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed and change nothing.")
@click.option(
    "--skip",
    type=click.Choice([destruction.CONNECT, destruction.KAFKA]),
    multiple=True,
    help="Do not ask this system, and leave what is there. Repeatable.",
)
@pass_invocation
def destroy(invocation: Invocation, data: bool, yes: bool, dry_run: bool, skip: tuple[str, ...]) -> int:
    """Remove what apply created: connector, slot, publication, role. Keeps the table and the topics.

    Events the connector has not delivered yet stay in the table, but no connector will send them.
    """
    definition = invocation.definition()
    with systems(definition) as (conn, client):
        removals = destruction.plan(conn, client, definition, data=data, skip=skip)
        if dry_run or not invocation.json:
            _print_removals(invocation, removals, done=False)
        destruction.check(conn, definition, removals)
        if dry_run or not any(removal.removes for removal in removals):
            if invocation.json and not dry_run:
                _print_removals(invocation, removals, done=True)
            return ExitCode.OK
        if not yes and not _confirmed(invocation):
            output.progress("nothing was removed")
            return ExitCode.OK
        done = destruction.destroy(conn, client, definition, data=data, say=output.progress, skip=skip)
    if invocation.json:
        _print_removals(invocation, done, done=True)
    return ExitCode.OK


def _confirmed(invocation: Invocation) -> bool:
    if invocation.json or not sys.stdin.isatty():
        raise UsageError("destroy asks before it removes, and nobody can answer here", remedy="add --yes")
    return click.confirm("Remove them?", err=True)


def _print_removals(invocation: Invocation, removals: tuple[destruction.Removal, ...], *, done: bool) -> None:
    if invocation.json:
        output.json_document({"objects": [removal.document() for removal in removals], "done": done})
        return
    rows = [(removal.action, removal.kind, removal.name, removal.why) for removal in removals]
    output.table(rows, ("ACTION", "KIND", "NAME", "WHY"))


@click.command()
@click.option("--debezium", "debezium_text", metavar="VERSION", help="Not the version found on the worker.")
@click.option("--postgres", "major", type=click.IntRange(14, 30), metavar="MAJOR", help="Not the one found.")
@click.option("--explain", is_flag=True, help="Add the reason of each property.")
@pass_invocation
def render(invocation: Invocation, debezium_text: str | None, major: int | None, explain: bool) -> int:
    """Print the connector's configuration, with the reason of each property.

    Asks Connect and PostgreSQL for their versions, unless both are given.
    """
    definition = invocation.definition()
    version = _debezium(definition, debezium_text)
    postgres_major = _postgres_major(definition) if major is None else major
    if explain:
        _print_reasons(invocation, definition, version, postgres_major)
        return ExitCode.OK
    config = render_connector(definition, debezium=version, postgres_major=postgres_major)
    output.json_document({"name": definition.connect.connector, "config": config})
    return ExitCode.OK


def _debezium(definition: Definition, text: str | None) -> Version:
    if text is not None:
        try:
            return Version.parse(text)
        except ValueError:
            raise UsageError(f"not a Debezium version: {text!r}", remedy="write it as 3.7.0.Final") from None
    with ConnectClient(definition.connect, patience=CONNECT_PATIENCE_SECONDS) as client:
        version = client.debezium_version()
        if version is None:
            raise Unreachable(
                "no Debezium PostgreSQL connector is installed",
                where=client.where,
                remedy="install it, or give --debezium VERSION",
            )
    return version


def _postgres_major(definition: Definition) -> int:
    with postgres.as_admin(definition, APPLICATION_NAME, only_look=True) as conn:
        return postgres.server_major(conn)


def _print_reasons(invocation: Invocation, definition: Definition, version: Version, major: int) -> None:
    found = reasons(definition, debezium=version, postgres_major=major)
    if invocation.json:
        output.json_document(
            {
                "name": definition.connect.connector,
                "properties": [
                    {"key": r.key, "value": r.value, "why": r.why, "overridden": r.overridden} for r in found
                ],
            }
        )
        return
    for reason in found:
        output.line(f"{reason.key} = {reason.value}")
        output.line(f"    {reason.why}")


# -- rendering ---------------------------------------------------------------------------------------


def _print_plan(found: Plan) -> None:
    width = max(len(planned.kind) for planned in found.objects)
    for planned in found.objects:
        state = click.style(planned.state.ljust(9), fg=_COLOURS[planned.state])
        output.line(f"{state}  {planned.kind.ljust(width)}  {planned.name}")
        for text in _details(planned):
            output.line(f"{'':9}    {text}")
    for planned in found.objects:
        for text in planned.warnings:
            output.warning(text)
    if not found.differences:
        output.line("nothing differs")
    else:
        noun = "object differs" if found.differences == 1 else "objects differ"
        output.line(f"{found.differences} {noun}")


def _details(planned: ObjectPlan) -> Iterator[str]:
    for change in planned.changes:
        yield f"{change.field}: {change.have} -> {change.want}"
    if planned.why:
        yield f"why: {planned.why}"
    if planned.remedy:
        yield f"do:  {planned.remedy}"


def _print_sql(found: Plan, verifier: bool) -> None:
    for planned in found.objects:
        if planned.state is State.BLOCKED:
            output.line(f"-- {planned.kind} {planned.name} is blocked: {planned.why}; {planned.remedy}")
        elif planned.sql:
            output.line(text_of(planned.sql) if verifier else planned.statement)
