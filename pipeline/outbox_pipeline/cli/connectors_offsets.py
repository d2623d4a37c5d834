"""`outboxctl connectors offsets show | set | reset`: where a connector resumes."""

from __future__ import annotations

from typing import Any

import click

from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.cli.connect_target import (
    ConnectTarget,
    Target,
    dry_run_option,
    name_argument,
    pass_place,
)
from outbox_pipeline.connect import offsets as reading
from outbox_pipeline.connect.client import SourceOffset
from outbox_pipeline.connect.offset_changes import OffsetChange, plan_reset, plan_set
from outbox_pipeline.connect.offsets import Positions
from outbox_pipeline.servers import lsn
from outbox_pipeline.servers.positions import PositionFinding
from outbox_pipeline.servers.slots import LiveSlot

accept_loss_option = click.option(
    "--accept-loss", is_flag=True, help="Go ahead although events would be skipped, or might be."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def offsets() -> None:
    """Show and change where a connector resumes."""


@offsets.command()
@name_argument
@pass_place
@pass_invocation
def show(invocation: Invocation, place: ConnectTarget, name: str | None) -> int:
    """Show the stored offset beside the slot.

    Positions are written X/Y, as PostgreSQL does; the verdict says what a start would meet.

    Exit code 5 when a start would fail or skip events, 4 for a warning.
    """
    with place.target(name) as target:
        positions = _positions(target)
    verdicts = reading.verdicts(positions)
    if invocation.json:
        output.json_document(_document(target.name, positions, verdicts))
    else:
        _show(target.name, positions, verdicts)
    return verdicts[0].severity.exit_code


@offsets.command("set")
@click.argument("position", metavar="X/Y")
@name_argument
@accept_loss_option
@dry_run_option
@yes_option
@pass_place
@pass_invocation
def set_(
    invocation: Invocation,
    place: ConnectTarget,
    position: str,
    name: str | None,
    accept_loss: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Let a STOPPED connector resume at X/Y.

    The rows that the slot still holds are read (not consumed) to count those that would be skipped
    and those that would be sent again. Refused (exit code 7) when any would be skipped, or when that
    cannot be found out, unless --accept-loss.
    """
    wanted = lsn.parse(position)
    with place.target(name) as target:
        positions = _positions(target)
        with target.database(positions.database) as conn:
            change = plan_set(conn, target.client.status(target.name), positions, wanted, accept_loss)
        if _agreed(target, change, dry_run, yes):
            target.client.set_offset(target.name, wanted)
    _done(invocation, target, change, dry_run)


@offsets.command()
@name_argument
@accept_loss_option
@dry_run_option
@yes_option
@pass_place
@pass_invocation
def reset(
    invocation: Invocation,
    place: ConnectTarget,
    name: str | None,
    accept_loss: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Forget where a STOPPED connector resumes.

    It then starts where its slot stands.

    Refused (exit code 7) where the slot is missing or lost, because a start would skip what was
    written meanwhile, unless --accept-loss.
    """
    with place.target(name) as target:
        positions = _positions(target)
        change = plan_reset(target.client.status(target.name), positions, accept_loss)
        if _agreed(target, change, dry_run, yes):
            target.client.reset_offsets(target.name)
    _done(invocation, target, change, dry_run)


def _positions(target: Target) -> Positions:
    config = target.config()
    with target.database(config.get("database.dbname", "")) as conn:
        return reading.read(conn, config, target.client.offsets(target.name))


def _agreed(target: Target, change: OffsetChange, dry_run: bool, yes: bool) -> bool:
    """Show the plan and ask; False for a dry run. A refusal of the user ends the command."""
    output.progress(f"{target.name}: {change.text}")
    if dry_run:
        return False
    if not yes:
        click.confirm("Change the stored offset?", abort=True, err=True)
    return True


def _done(invocation: Invocation, target: Target, change: OffsetChange, dry_run: bool) -> None:
    if invocation.json:
        output.json_document(
            {
                "connector": target.name,
                "action": change.action,
                "dry_run": dry_run,
                "have": change.have,
                "want": change.want,
                "skipped": change.skipped,
                "repeated": change.repeated,
            }
        )
    elif not dry_run:
        output.line(f"{target.name}: stored offset is {change.want or 'gone'}; go on with: connectors resume")


def _show(name: str, positions: Positions, verdicts: tuple[PositionFinding, ...]) -> None:
    offset, slot = positions.offset, positions.slot
    rows = [["end of the log", lsn.text(positions.log_end), ""]]
    if offset is None:
        rows.append(["stored offset", "-", "nothing stored yet"])
    else:
        kind = f"{offset.message_type or 'type unknown'}{', snapshot under way' if offset.snapshot else ''}"
        rows.append(["stored offset", _text(offset.resume_at), kind])
        rows.append(["  last commit", _text(offset.lsn_commit), ""])
    if slot is None:
        rows.append(["slot", "-", f"{positions.slot_name} does not exist"])
    else:
        rows.append(
            ["confirmed_flush", slot.confirmed_flush_lsn or "-", _slot_text(positions.slot_name, slot)]
        )
        rows.append(["restart_lsn", slot.restart_lsn or "-", f"wal_status {slot.wal_status or 'unknown'}"])
    output.line(name)
    output.table(rows, ["POSITION", "LSN", ""])
    for verdict in verdicts:
        step = f" Next: {verdict.next_step}." if verdict.next_step else ""
        output.line(f"{verdict.severity}: {verdict.cause}.{step}")


def _slot_text(name: str, slot: LiveSlot) -> str:
    holder = f"held by pid {slot.active_pid}" if slot.active else "not in use"
    return f"slot {name}, {holder}"


def _text(position: int | None) -> str:
    return "-" if position is None else lsn.text(position)


def _document(name: str, positions: Positions, verdicts: tuple[PositionFinding, ...]) -> dict[str, Any]:
    return {
        "connector": name,
        "offset": _offset_document(positions.offset),
        "slot": _slot_document(positions.slot_name, positions.slot),
        "log_end": lsn.text(positions.log_end),
        "verdicts": [
            {"code": v.code, "severity": v.severity, "cause": v.cause, "next_step": v.next_step}
            for v in verdicts
        ],
    }


def _offset_document(offset: SourceOffset | None) -> dict[str, Any] | None:
    if offset is None:
        return None
    return {
        "lsn": _text(offset.lsn),
        "lsn_proc": _text(offset.lsn_proc),
        "lsn_commit": _text(offset.lsn_commit),
        "message_type": offset.message_type,
        "snapshot": offset.snapshot,
        "raw": dict(offset.raw),
    }


def _slot_document(name: str, slot: LiveSlot | None) -> dict[str, Any]:
    if slot is None:
        return {"name": name, "exists": False}
    return {
        "name": name,
        "exists": True,
        "active_pid": slot.active_pid,
        "wal_status": slot.wal_status,
        "invalidation_reason": slot.invalidation_reason,
        "restart_lsn": slot.restart_lsn,
        "confirmed_flush_lsn": slot.confirmed_flush_lsn,
    }
