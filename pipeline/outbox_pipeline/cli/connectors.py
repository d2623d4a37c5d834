"""`outboxctl connectors ...`: register and inspect connectors, the definition's own or any other."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import psycopg

from outbox_connectors import checks, profile
from outbox_connectors.checks import CapturedTable
from outbox_connectors.errors import ExitCode
from outbox_pipeline import provision
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.cli.connect_target import (
    ConnectTarget,
    Target,
    dry_run_option,
    force_option,
    name_argument,
    pass_place,
    wait_option,
)
from outbox_pipeline.cli.connectors_offsets import offsets
from outbox_pipeline.cli.connectors_state import (
    delete,
    pause,
    restart,
    resume,
    show_status,
    status_code,
    status_document,
    stop,
)
from outbox_pipeline.connect import configuration, registration, restart_guard
from outbox_pipeline.connect.client import FieldError
from outbox_pipeline.connect.registration import Registration
from outbox_pipeline.errors import OutboxError, Refused, UsageError
from outbox_pipeline.provision import captured, publications, tables
from outbox_pipeline.servers import postgres
from outbox_pipeline.servers.plan import State

file_option = click.option(
    "--file",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help='A connector as JSON ({"name", "config"} or the bare config) instead of the definition\'s.',
)


@click.group()
@click.option(
    "--url",
    help="Kafka Connect's address, instead of the definition's. "
    "$OUTBOX_CONNECT_URL is used where there is no definition file.",
)
@click.pass_context
def connectors(ctx: click.Context, url: str | None) -> None:
    """Register, inspect and steer connectors on Kafka Connect.

    NAME is the definition's connector unless given. With --url, or $OUTBOX_CONNECT_URL, no
    definition file is needed; PostgreSQL is then reached through libpq's PG* variables.
    """
    invocation = ctx.find_object(Invocation)
    assert invocation is not None  # the root group has made it
    if url is not None and urlsplit(url).password:
        raise UsageError(
            "--url holds a password that every user of this machine can read",
            remedy="put it into connect.auth of the definition, or into $OUTBOX_CONNECT_URL",
        )
    if url is None and not invocation.file.exists():
        url = os.environ.get("OUTBOX_CONNECT_URL")
    ctx.obj = ConnectTarget(invocation, url)


for command in (pause, resume, stop, restart, delete, offsets):
    connectors.add_command(command)


@connectors.command("list")
@pass_place
@pass_invocation
def list_(invocation: Invocation, place: ConnectTarget) -> None:
    """List every connector with its state.

    The states of its tasks and its version stand beside it.
    """
    with place.client() as client:
        found = client.statuses()
    if invocation.json:
        output.json_document([status_document(status) for status in found])
    elif found:
        rows = [[s.name, s.state, " ".join(t.state for t in s.tasks) or "-", s.version or "-"] for s in found]
        output.table(rows, ["NAME", "STATE", "TASKS", "VERSION"])
    else:
        output.progress("no connectors")


@connectors.command()
@name_argument
@pass_place
@pass_invocation
def status(invocation: Invocation, place: ConnectTarget, name: str | None) -> int:
    """Show a connector and its tasks.

    For what failed, the one line of the trace that matters.

    Exit code 5 when something FAILED, 4 when it does not deliver for another reason.
    """
    with place.target(name) as target:
        found = target.status()
    show_status(invocation, found)
    return status_code(found)


@connectors.command()
@name_argument
@file_option
@pass_place
@pass_invocation
def validate(invocation: Invocation, place: ConnectTarget, name: str | None, json_file: Path | None) -> int:
    """Let Connect validate a configuration.

    Connect overlooks much, so our own checks are made too (outboxctl doctor makes all of them).
    Exit code 1 when Connect refuses it, 5 or 4 by the worst finding of our own.
    """
    with _wanted(place, name, json_file) as (target, config, major):
        table = _captured(place, target, config)
        plan = registration.prepare(target.client, target.name, config, postgres_major=major, table=table)
    if invocation.json:
        document = {"errors": _error_documents(plan.errors), "findings": _finding_documents(plan.findings)}
        output.json_document({"connector": plan.name, **document})
    else:
        _show_errors(plan.errors)
        _show_findings(plan)
        if not plan.errors:
            output.line(f"{plan.name}: Connect finds nothing wrong with {len(config)} properties")
    return ExitCode.FAILED if plan.errors else checks.worst(list(plan.findings)).exit_code


@connectors.command()
@name_argument
@file_option
@dry_run_option
@force_option
@click.option(
    "--backup-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True, writable=True),
    default=Path(),
    help="Where the configuration that is replaced is kept, as NAME.TIME.json. [default: this folder]",
)
@wait_option
@pass_place
@pass_invocation
def register(
    invocation: Invocation,
    place: ConnectTarget,
    name: str | None,
    json_file: Path | None,
    dry_run: bool,
    force: bool,
    backup_dir: Path,
    wait_seconds: float,
) -> int:
    """Create or update a connector.

    Connect validates it first, the difference is shown, and its task is watched afterwards.

    The configuration that is replaced is kept in a file (mode 0600, with the secrets that it has).

    Exit code 1 when Connect refuses the configuration or the task fails while it is watched, 7 when
    the update would restart a task at a moment at which rows could be lost, or replace a connector that
    works by a configuration with critical findings, of another source or form, or for a blocked table.
    """
    with _wanted(place, name, json_file) as (target, config, major):
        table = _captured(place, target, config)
        plan = registration.prepare(target.client, target.name, config, postgres_major=major, table=table)
        if not invocation.json:
            _show_plan(plan, dry_run)
        if plan.errors:
            return _refused(invocation, plan, dry_run)
        before = target.client.config(target.name) if plan.action == "update" else None
        if before is not None and not force:
            _refuse_to_replace(place, target, before, config, plan, from_file=json_file is not None)
        if dry_run or plan.action == "none":
            if invocation.json:
                output.json_document(_plan_document(plan, dry_run))
            return ExitCode.OK
        if plan.exists and not force:
            restart_guard.protect(target.client, target.name, "the update", target.database)
        if before is not None:
            kept = registration.keep_copy(backup_dir, target.name, before, datetime.now(UTC))
            words = ("outboxctl", "connectors", "register", target.name, "--file", str(kept), "--force")
            back = shlex.join(words)
            output.progress(f"the configuration before is kept in {kept}; to put it back: {back}")
        target.client.put_config(target.name, config)
        output.progress(f"{target.name}: {plan.action}d, watching its task for {wait_seconds:g} s")
        found = registration.settle(target.client, target.name, wait_seconds)
    if invocation.json:
        output.json_document({**_plan_document(plan, dry_run), "status": status_document(found)})
    else:
        show_status(invocation, found)
    return ExitCode.FAILED if found.failed else ExitCode.OK


def _refuse_to_replace(
    place: ConnectTarget,
    target: Target,
    before: Mapping[str, str],
    wanted: Mapping[str, str],
    plan: Registration,
    *,
    from_file: bool,
) -> None:
    """Raise Refused where a connector that works would get a configuration that may not."""
    if not registration.works(target.status()):
        return
    definition = None if from_file else place.definition()
    blocked: list[str] = []
    if definition is not None and target.name == definition.connect.connector:
        with target.database(definition.postgres.connector.database) as conn:
            found = [part.look() for part in provision.postgres_parts(conn, definition) if part.kind in _READ]
        blocked = [f"{one.kind} {one.name}: {one.why}" for one in found if one.state is State.BLOCKED]
    else:
        definition = None
    reasons = registration.reasons_to_keep(before, wanted, plan.findings, definition, blocked)
    if reasons:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise Refused(
            f"connector {target.name} works, and the new configuration may not: {reasons[0]}{more}",
            where=target.client.where,
            remedy="nothing was changed; mend that first, or replace it with --force",
        )


_READ = (tables.KIND, publications.KIND)  # what a connector reads


@contextmanager
def _wanted(
    place: ConnectTarget, name: str | None, json_file: Path | None
) -> Iterator[tuple[Target, dict[str, str], int | None]]:
    """Open the target and get its configuration: from the JSON file, else rendered from the definition.

    The third is the server's major version, None where nobody had to ask it.
    """
    if json_file is not None:
        given, config = configuration.read_file(json_file, name)
        with place.target(given) as target:
            yield target, config, None
        return
    with place.target(name) as target:
        definition = place.definition()
        if definition is None or target.name != definition.connect.connector:
            yield target, target.config(), None
            return
        version = registration.require_debezium(target.client)
        with target.database(definition.postgres.connector.database) as conn:
            major = postgres.server_major(conn)
        for finding in profile.protected_overrides(definition, debezium=version, postgres_major=major):
            output.warning(f"{finding.cause}; {finding.remedy}")
        yield target, profile.render(definition, debezium=version, postgres_major=major), major


def _captured(place: ConnectTarget, target: Target, config: dict[str, str]) -> CapturedTable | None:
    """Read the table that a configuration captures; None where its database is not known to be ours to ask.

    The administrator's server is the connector's only where host, port and database are the definition's.
    """
    definition = place.definition()
    if definition is None:
        return None
    login = definition.postgres.connector
    theirs = [config.get(f"database.{key}", "") for key in ("hostname", "port", "dbname")]
    if theirs != [login.host, str(login.port), login.database]:
        return None
    try:
        with target.database(login.database) as conn:
            return captured.outbox_of(conn, config)
    except (OutboxError, psycopg.Error):
        return None  # the remedies then say what to find out


def _show_plan(plan: Registration, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    done = {"create": f"{would}created", "update": f"{would}updated", "none": "nothing to change"}
    output.line(f"{plan.name}: {done[plan.action]}")
    for change in plan.changes:
        if change.have is None:
            output.line(f"  + {change.field} = {change.want}")
        elif change.want is None:
            output.line(f"  - {change.field} = {change.have}")
        else:
            output.line(f"  ~ {change.field} = {change.have} -> {change.want}")
    _show_findings(plan)


def _show_findings(plan: Registration) -> None:
    for finding in plan.findings:
        word = "note" if finding.severity is checks.Severity.OK else finding.severity
        output.warning(f"{word}: {finding.cause}; {finding.remedy}")
    if plan.literal_secrets:
        names = ", ".join(plan.literal_secrets)
        output.warning(
            f"{names} would be stored readable for all; use ${{env:NAME}} or ${{file:path:key}} of a "
            "provider that the worker has (config.providers)"
        )


def _refused(invocation: Invocation, plan: Registration, dry_run: bool) -> int:
    if invocation.json:
        output.json_document(_plan_document(plan, dry_run))
    else:
        _show_errors(plan.errors)
    problem = f"Connect refuses {len({e.field for e in plan.errors})} properties of {plan.name}"
    output.error(f"{problem}; nothing was changed")
    return ExitCode.FAILED


def _show_errors(errors: Sequence[FieldError]) -> None:
    for error in errors:
        output.line(f"  {error.field}: {error.message}")


def _error_documents(errors: Sequence[FieldError]) -> list[dict[str, str]]:
    return [{"field": error.field, "message": error.message} for error in errors]


def _finding_documents(findings: Sequence[checks.Finding]) -> list[dict[str, str]]:
    return [
        {"code": f.code, "severity": f.severity, "cause": f.cause, "remedy": f.remedy, "source": f.source}
        for f in findings
    ]


def _plan_document(plan: Registration, dry_run: bool) -> dict[str, Any]:
    return {
        "connector": plan.name,
        "action": plan.action,
        "dry_run": dry_run,
        "changes": [{"field": c.field, "have": c.have, "want": c.want} for c in plan.changes],
        "errors": _error_documents(plan.errors),
        "findings": _finding_documents(plan.findings),
    }
