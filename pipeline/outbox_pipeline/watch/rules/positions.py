"""Ask the rules of slot and stored offset (`servers.positions`) about a sample, where its sources agree.

PostgreSQL and Connect answer one after the other, so a position of one may be newer than that of the
other. What is compared is therefore taken from the sample before, where there is one; on a standby nothing
is asked, since its slots are copies or not yet in use.
"""

from __future__ import annotations

from outbox_pipeline.servers.positions import (
    PositionCode,
    PositionFinding,
    SlotAndOffset,
    SlotHolder,
    SlotState,
    StoredOffset,
    expected_plugin,
    judge,
)
from outbox_pipeline.servers.slot_holder import Process, Whose, whose
from outbox_pipeline.watch.facts import Facts
from outbox_pipeline.watch.sample import ConnectSample, PostgresSample, Sender, Slot


def position(facts: Facts, code: PositionCode) -> PositionFinding | None:
    """Give what the rules say under this code; None where they do not say it, or nothing can be asked."""
    if facts.postgres is None or facts.is_copy:
        return None
    if facts.postgres.server.in_recovery and code not in (PositionCode.SLOT_LOST, PositionCode.SLOT_TAKEN):
        return None
    return next((found for found in judge(state_of(facts, facts.postgres)) if found.code == code), None)


def state_of(facts: Facts, postgres: PostgresSample) -> SlotAndOffset:
    """Give what is judged, each position of a moment at which it can be compared with the others."""
    config = facts.connect.config if facts.connect else None
    return SlotAndOffset(
        facts.names.slot,
        facts.names.database,
        None if facts.slot is None else _slot(facts, facts.slot),
        _offset(facts.connect),
        _log_end(facts, postgres),
        expected_plugin(config),
        slot_existed=seen_before(facts),
    )


def seen_before(facts: Facts) -> bool:
    """Tell whether an earlier sample has seen the slot."""
    return any(point.confirmed is not None for point in facts.sample_past)


def confirmed_before(facts: Facts) -> int | None:
    """Give the slot's position of the sample before: the present one may be newer than the offset read."""
    before = [point.confirmed for point in facts.past if point.confirmed is not None]
    return before[-1] if before else None


def holder(facts: Facts) -> Whose:
    """Tell whose process holds the slot, from what the live connector logs in as."""
    sender, connect = facts.sender, facts.connect
    if sender is None:
        return Whose.UNKNOWN
    if not sender.application and sender.backend_type not in (None, "walsender"):
        return Whose.UNKNOWN
    return whose(
        process_of(sender),
        connect.config if connect else None,
        expected_user=facts.names.connector_user,
        worker=connect.tasks[0].worker if connect and connect.tasks else "",
        running=task_runs(connect),
    )


def process_of(sender: Sender) -> Process:
    """Give the process that holds the slot."""
    return Process(sender.pid, sender.user, sender.application, sender.client)


def task_runs(connect: ConnectSample | None) -> bool:
    """Tell whether a task of the connector is seen to run."""
    return connect is not None and any(task.state == "RUNNING" for task in connect.tasks)


def _slot(facts: Facts, slot: Slot) -> SlotState:
    sender, before = facts.sender, confirmed_before(facts)
    restart = slot.restart_lsn
    if restart is not None and before is not None:
        restart = min(restart, before)
    return SlotState(
        kind=slot.kind,
        plugin=slot.plugin,
        database=slot.database,
        temporary=slot.temporary,
        lost=slot.lost,
        invalidation_reason=slot.invalidation_reason,
        restart=restart,
        confirmed=before,
        holder=SlotHolder(process_of(sender), holder(facts), task_runs(facts.connect)) if sender else None,
    )


def _offset(connect: ConnectSample | None) -> StoredOffset | None:
    if connect is None or (connect.offset_lsn is None and not connect.offset_unreadable):
        return None
    return StoredOffset(connect.offset_lsn)


def _log_end(facts: Facts, postgres: PostgresSample) -> int:
    """Give the end of the log that the present offset is compared with.

    The offset may have been stored after PostgreSQL answered. One that an earlier sample had already is
    compared exactly, another only with what is written in that time to spare.
    """
    end = postgres.server.wal_position
    stored = [point.offset for point in facts.sample_past if point.offset is not None]
    offset = facts.connect.offset_lsn if facts.connect else None
    proven = bool(stored) and stored[-1] > end and offset is not None and offset >= stored[-1]
    return end if proven else end + facts.thresholds.quiet_bytes
