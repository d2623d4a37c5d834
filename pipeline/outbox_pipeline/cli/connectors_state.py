"""`outboxctl connectors pause | resume | stop | restart | delete`: the state of a connector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from outbox_connectors.errors import ExitCode
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
from outbox_pipeline.connect import offsets, registration, restart_guard
from outbox_pipeline.connect.client import ConnectorStatus
from outbox_pipeline.errors import Failed, Refused, Unreachable


@click.command()
@name_argument
@dry_run_option
@pass_place
@pass_invocation
def pause(invocation: Invocation, place: ConnectTarget, name: str | None, dry_run: bool) -> None:
    """Pause a connector.

    Its replication connection stays open; the slot keeps WAL.

    Loses nothing: the task keeps its place in memory, so no restart guard is asked.
    """
    with place.target(name) as target:
        before = target.status()
        _act(invocation, target, "pause", before, dry_run, lambda: target.client.pause(target.name))


@click.command()
@name_argument
@dry_run_option
@force_option
@wait_option
@pass_place
@pass_invocation
def resume(
    invocation: Invocation,
    place: ConnectTarget,
    name: str | None,
    dry_run: bool,
    force: bool,
    wait_seconds: float,
) -> int:
    """Resume a paused or stopped connector.

    Its stored offset is compared with the slot before.

    Refused (exit code 7) where the comparison says that it would fail or skip events, and where the
    stored offset is of a type from which rows can be lost.
    """
    with place.target(name) as target:
        before = target.status()
        if before.state == "STOPPED" and not force:
            _preflight(target, "resume")
        act = _watched(target, lambda: target.client.resume(target.name), wait_seconds)
        return _act(invocation, target, "resume", before, dry_run, act)


@click.command()
@name_argument
@dry_run_option
@force_option
@pass_place
@pass_invocation
def stop(invocation: Invocation, place: ConnectTarget, name: str | None, dry_run: bool, force: bool) -> None:
    """Stop a connector and free its slot.

    The slot keeps WAL; the offsets may then be changed.

    Refused (exit code 7) at a moment at which a restart could lose rows, unless --force.
    """
    with place.target(name) as target:
        before = target.status()
        if before.state != "STOPPED" and not force:
            restart_guard.protect(target.client, target.name, "stop", target.database)
        _act(invocation, target, "stop", before, dry_run, lambda: target.client.stop(target.name))


@click.command()
@name_argument
@click.option("--failed", is_flag=True, help="Only what has FAILED.")
@dry_run_option
@force_option
@wait_option
@pass_place
@pass_invocation
def restart(
    invocation: Invocation,
    place: ConnectTarget,
    name: str | None,
    failed: bool,
    dry_run: bool,
    force: bool,
    wait_seconds: float,
) -> int:
    """Restart a connector and its task.

    Its stored offset is compared with the slot before.

    Refused (exit code 7) as `resume` is, and while an open outbox transaction makes a loss possible.
    """
    with place.target(name) as target:
        before = target.status()
        if before.state == "STOPPED":
            problem = f"connector {target.name} is STOPPED: a restart does nothing"
            raise Failed(problem, remedy="outboxctl connectors resume")
        if failed and not before.failed:
            return _nothing_failed(invocation, before)
        if not force:
            _preflight(target, "restart")
        act = _watched(target, lambda: target.client.restart(target.name, only_failed=failed), wait_seconds)
        return _act(invocation, target, "restart", before, dry_run, act)


@click.command()
@name_argument
@dry_run_option
@force_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_place
@pass_invocation
def delete(
    invocation: Invocation, place: ConnectTarget, name: str | None, dry_run: bool, force: bool, yes: bool
) -> None:
    """Delete a connector. Its slot, its offsets and its topics stay.

    The slot keeps WAL until the disk is full unless it is dropped too; a connector created anew under
    the same name goes on where this one ended.
    """
    with place.target(name) as target:
        before = target.status()
        slot = target.config().get("slot.name", "debezium")
        output.progress(
            f"{target.name}: slot {slot} stays and keeps WAL, offsets stay, topics stay "
            "(offsets reset, and dropping the slot, are steps of their own)"
        )
        if before.state != "STOPPED" and not force:
            restart_guard.protect(target.client, target.name, "delete", target.database)
        if not dry_run and not yes:
            click.confirm(f"Delete connector {target.name}?", abort=True, err=True)
        _act(invocation, target, "delete", before, dry_run, lambda: target.client.delete(target.name))


def _nothing_failed(invocation: Invocation, status: ConnectorStatus) -> int:
    if invocation.json:
        document = {"connector": status.name, "action": "none", "dry_run": False, "before": status.state}
        output.json_document({**document, "status": status_document(status)})
    else:
        output.line(f"{status.name}: nothing has FAILED, nothing was restarted")
    return ExitCode.OK


def _preflight(target: Target, action: str) -> None:
    """Refuse a start that would lose rows or fail, and one of which the database cannot be asked."""
    config = target.config()
    try:
        restart_guard.protect(target.client, target.name, action, target.database)
        with target.database(config.get("database.dbname", "")) as conn:
            positions = offsets.read(conn, config, target.client.offsets(target.name))
    except Unreachable as error:
        raise Refused(
            f"{action} of connector {target.name} refused, slot and offset cannot be compared: {error}",
            remedy=f"bring PostgreSQL back, or {action} --force",
        ) from error
    offsets.refuse_unsafe_start(action, positions)


def _watched(target: Target, act: Callable[[], None], seconds: float) -> Callable[[], None]:
    def acted() -> None:
        act()
        output.progress(f"{target.name}: watching its task for {seconds:g} s")
        registration.settle(target.client, target.name, seconds)

    return acted


def _act(
    invocation: Invocation,
    target: Target,
    action: str,
    before: ConnectorStatus,
    dry_run: bool,
    act: Callable[[], None],
) -> int:
    """Do it, unless it is a dry run, and show the state after it."""
    if not dry_run:
        act()
    after = before if dry_run else target.client.status(target.name)
    if invocation.json:
        shown = status_document(after) if after else None
        output.json_document(
            {
                "connector": target.name,
                "action": action,
                "dry_run": dry_run,
                "before": before.state,
                "status": shown,
            }
        )
    elif dry_run:
        output.line(f"{target.name}: would {action} (now {before.state})")
    elif after is None:
        output.line(f"{target.name}: deleted")
    else:
        show_status(invocation, after)
    return ExitCode.FAILED if after is not None and after.failed and not dry_run else ExitCode.OK


def show_status(invocation: Invocation, status: ConnectorStatus) -> None:
    """Print a connector, its tasks, and what their states mean."""
    if invocation.json:
        output.json_document(status_document(status))
        return
    version = f" ({status.version})" if status.version else ""
    output.line(f"{status.name}{version}: {status.state} on {status.worker_id or 'no worker'}")
    for task in status.tasks:
        output.line(f"  task {task.id}: {task.state} on {task.worker_id or 'no worker'}")
    explanation = registration.explain(status)
    if explanation:
        output.line(f"  {explanation}")


def status_document(status: ConnectorStatus) -> dict[str, Any]:
    """Show a connector's state as JSON; `why` is the line that matters."""
    return {
        "name": status.name,
        "state": status.state,
        "worker": status.worker_id,
        "version": status.version,
        "tasks": [
            {"id": t.id, "state": t.state, "worker": t.worker_id, "why": t.trace_line} for t in status.tasks
        ],
        "why": registration.explain(status),
    }


def status_code(status: ConnectorStatus) -> ExitCode:
    """Give the exit code of a state: 5 FAILED, 4 not delivering for another reason, 0 running."""
    if status.failed:
        return ExitCode.CRITICAL
    return ExitCode.WARNING if registration.explain(status) else ExitCode.OK
