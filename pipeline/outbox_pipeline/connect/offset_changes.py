"""Decide whether a stored offset may be changed, by counting the rows that the change would skip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from outbox_pipeline.connect import offsets
from outbox_pipeline.connect.client import ConnectorStatus
from outbox_pipeline.connect.offsets import Positions, ResumeEffect
from outbox_pipeline.errors import Refused, UsageError
from outbox_pipeline.servers import lsn


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A change of the stored offset that may go ahead. Positions are texts, None: nothing stored."""

    action: str
    have: str | None
    want: str | None
    skipped: int | None  # None: could not be counted
    repeated: int | None
    text: str


def plan_set(
    conn: psycopg.Connection[Any],
    status: ConnectorStatus | None,
    positions: Positions,
    wanted: int,
    accept_loss: bool,
) -> OffsetChange:
    """Plan to resume at `wanted`; reads, without consuming, what the idle slot still holds.

    Raises Refused when the connector is not STOPPED, when it could not start there (before the
    slot's restart_lsn, beyond the end of the log), or, unless `accept_loss`, when rows would be
    skipped or that cannot be found out.
    """
    _require_stopped(status)
    _require_startable(positions, wanted)
    effect, obstacle = _effect(conn, positions, wanted)
    if effect is None and not accept_loss:
        raise Refused(
            f"how many rows would be skipped cannot be found out: {obstacle}",
            remedy="mend that, or accept the loss with --accept-loss",
        )
    if effect is not None and effect.skipped and not accept_loss:
        raise Refused(
            f"{effect.skipped:,} rows would never be delivered",
            remedy=f"choose a position up to {_safe(positions)}, or accept the loss with --accept-loss",
        )
    return OffsetChange(
        "set",
        _have(positions),
        lsn.text(wanted),
        effect.skipped if effect else None,
        effect.repeated if effect else None,
        f"resume at {lsn.text(wanted)} instead of {_have(positions) or 'the slot'}: {_told(effect)}",
    )


def plan_reset(status: ConnectorStatus | None, positions: Positions, accept_loss: bool) -> OffsetChange:
    """Plan to forget the stored offset. Pure.

    With a slot that works nothing is lost: the server resumes at confirmed_flush_lsn, and Debezium
    has confirmed only what Kafka has. Raises Refused when the connector is not STOPPED, or, unless
    `accept_loss`, when the slot is missing or lost.
    """
    _require_stopped(status)
    if (positions.slot is None or positions.slot.lost) and not accept_loss:
        state = "does not exist" if positions.slot is None else "is lost"
        raise Refused(
            f"slot {positions.slot_name} {state}: a start without an offset begins at the end of the log, "
            "and rows written since the stored offset are never sent",
            remedy=f"{offsets.verdicts(positions)[0].next_step}; or accept the loss with --accept-loss",
        )
    start = lsn.text(positions.confirmed) if positions.confirmed is not None else "the end of the log"
    mode = positions.config.get("snapshot.mode", "initial")
    snapshot = "" if mode == "no_data" else f"; snapshot.mode {mode} sends every row of the table again"
    text = f"forget {_have(positions) or 'nothing'}: the connector then starts at {start}{snapshot}"
    return OffsetChange("reset", _have(positions), None, None, None, text)


def _effect(
    conn: psycopg.Connection[Any], positions: Positions, wanted: int
) -> tuple[ResumeEffect | None, str]:
    """Count what would be skipped, or say why it cannot be counted."""
    assert positions.slot is not None  # _require_startable has seen to it
    confirmed = positions.confirmed or 0
    publication = positions.config.get("publication.name", "dbz_publication")
    try:
        held = offsets.peek(conn, positions.slot_name, publication, wanted, positions.offset)
    except psycopg.Error as error:
        return None, str(error).splitlines()[0]
    return offsets.effect(held, wanted, confirmed, positions.offset), ""


def _require_stopped(status: ConnectorStatus | None) -> None:
    if status is None or not status.stopped:
        state = status.state if status else "gone"
        raise Refused(
            f"offsets can be changed only while the connector is STOPPED; it is {state}",
            remedy="outboxctl connectors stop",
        )


def _require_startable(positions: Positions, wanted: int) -> None:
    if positions.slot is None or positions.slot.lost:
        state = "does not exist" if positions.slot is None else "is lost"
        raise Refused(
            f"slot {positions.slot_name} {state}: no position can be resumed from",
            remedy=offsets.verdicts(positions)[0].next_step,
        )
    if positions.restart is not None and wanted < positions.restart:
        raise Refused(
            f"{lsn.text(wanted)} is older than what the slot keeps: the task would fail at its start",
            remedy=f"choose a position from {lsn.text(positions.restart)} on",
        )
    if wanted > positions.log_end:
        raise Refused(
            f"{lsn.text(wanted)} lies beyond the end of the log ({lsn.text(positions.log_end)}): "
            "rows would be skipped in silence until it is reached"
        )
    if wanted == 0:
        raise UsageError("0/0 is no position to resume from", remedy="outboxctl connectors offsets reset")


def _safe(positions: Positions) -> str:
    """Name the latest position that is known to skip nothing."""
    committed = positions.offset.lsn_commit if positions.offset else None
    return lsn.text(max(positions.confirmed or 0, committed or 0))


def _have(positions: Positions) -> str | None:
    offset = positions.offset
    return lsn.text(offset.resume_at) if offset is not None and offset.resume_at is not None else None


def _told(effect: ResumeEffect | None) -> str:
    if effect is None:
        return "an unknown number of rows is skipped"
    return f"{effect.skipped:,} rows are skipped, {effect.repeated:,} are sent again"
