"""Every state of slot and stored offset, through everything that judges it: one code and one next step."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from outbox_connectors import loading
from outbox_connectors.checks import Finding
from outbox_connectors.findings import Severity
from outbox_pipeline.connect import canary, offsets
from outbox_pipeline.connect.client import ConnectorStatus, SourceOffset, TaskStatus
from outbox_pipeline.connect.offset_changes import plan_reset
from outbox_pipeline.connect.offsets import Positions, refuse_unsafe_start
from outbox_pipeline.errors import Refused
from outbox_pipeline.provision import doctor
from outbox_pipeline.servers import lsn, slots
from outbox_pipeline.servers.admin_rights import Rights
from outbox_pipeline.servers.plan import ObjectPlan, State
from outbox_pipeline.servers.positions import (
    APPLY,
    AUDIT,
    RECOVER,
    RECOVERABLE,
    PositionCode,
    PositionFinding,
)
from outbox_pipeline.servers.slots import LiveSlot
from outbox_pipeline.watch.assess import RULES
from outbox_pipeline.watch.facts import facts_of
from outbox_pipeline.watch.sample import Sample, Slot
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import VerdictKey, WatchFinding
from watch_samples import (
    HEALTHY,
    MIB,
    SENDER,
    SLOT,
    WAL,
    history_of,
    later,
    with_connect,
    with_postgres,
)

DEFINITION = loading.load(Path(__file__).parents[3] / "connectors" / "outbox.yaml", {})
NAME = DEFINITION.postgres.slot
ADMIN = Rights("admin", True, True, True, True, True, True, True, True, server_major=16)
RESTART, CONFIRMED = WAL - 90_000, WAL - 50_000
REASONS = ("wal_removed", "rows_removed", "wal_level_insufficient", "idle_timeout")

ACTIVE = LiveSlot(
    plugin="pgoutput",
    kind="logical",
    database="shop",
    temporary=False,
    active=True,
    active_pid=SENDER.pid,
    active_user="shop_cdc",
    active_application="Debezium Streaming",
    wal_status="reserved",
    restart_lsn=lsn.text(RESTART),
    confirmed_flush_lsn=lsn.text(CONFIRMED),
    safe_wal_size=None,
    conflicting=None,
    invalidation_reason=None,
    failover=False,
    inactive_since=None,
)
FREE = replace(ACTIVE, active=False, active_pid=None, active_user=None, active_application=None)
SLOTS: dict[str, LiveSlot | None] = {
    "missing": None,
    **{f"lost by {why}": replace(FREE, wal_status="lost", invalidation_reason=why) for why in REASONS},
    "lost before 17": replace(FREE, wal_status="lost", restart_lsn=None),
    "foreign plug-in": replace(FREE, plugin="wal2json"),
    "foreign database": replace(FREE, database="billing"),
    "physical": replace(FREE, kind="physical", plugin=None, database=None),
    "held by another": replace(ACTIVE, active_user="rival", active_application="pg_recvlogical"),
    "held by another Debezium": replace(ACTIVE, active_user="rival"),
    "idle": FREE,
    "active": ACTIVE,
}
OFFSETS = {
    "none": None,
    "unreadable": (None,),
    "older than restart": (RESTART - 1,),
    "before confirmed": (CONFIRMED - 1,),
    "at confirmed": (CONFIRMED,),
    "beyond the end": (WAL + 64 * MIB,),
}
MODES = ("no_data", "initial")
CELLS = list(product(SLOTS, OFFSETS, MODES))


def positions(slot: str, offset: str, mode: str) -> Positions:
    config = {
        "slot.name": NAME,
        "database.dbname": "shop",
        "database.user": "shop_cdc",
        "plugin.name": "pgoutput",
        "snapshot.mode": mode,
    }
    return Positions(NAME, config, stored(offset), SLOTS[slot], WAL)


def stored(offset: str) -> SourceOffset | None:
    found = OFFSETS[offset]
    return None if found is None else SourceOffset("shop", found[0], found[0], found[0], "INSERT", False, {})


def expected(slot: str, offset: str, mode: str) -> tuple[str, Severity, str]:
    """The whole table; an empty step stands for one that depends on the process or the name."""
    if slot == "missing":
        return "slot_missing", Severity.CRITICAL, APPLY if offset == "none" else RECOVER
    if slot.startswith("lost"):
        return "slot_lost", Severity.CRITICAL, RECOVER
    if slot in ("foreign plug-in", "foreign database", "physical"):
        return "slot_foreign", Severity.CRITICAL, ""
    if slot.startswith("held"):
        return "slot_taken", Severity.CRITICAL, ""
    if offset == "none":
        if mode == "initial":
            return "snapshot_ahead", Severity.WARNING, ""
        return "resumes", Severity.OK, ""
    return {
        "unreadable": ("offset_unreadable", Severity.CRITICAL, RECOVER),
        "older than restart": ("offset_behind_slot", Severity.CRITICAL, RECOVER),
        "before confirmed": ("offset_behind_slot", Severity.WARNING, AUDIT),
        "at confirmed": ("resumes", Severity.OK, ""),
        "beyond the end": ("offset_ahead_of_slot", Severity.CRITICAL, RECOVER),
    }[offset]


def worst(slot: str, offset: str, mode: str) -> PositionFinding:
    return offsets.verdicts(positions(slot, offset, mode))[0]


@pytest.mark.parametrize(("slot", "offset", "mode"), CELLS)
def test_each_state_has_one_code_severity_and_step(slot: str, offset: str, mode: str) -> None:
    code, severity, step = expected(slot, offset, mode)
    found = worst(slot, offset, mode)
    assert (found.code, found.severity) == (code, severity)
    assert found.next_step == step if step else bool(found.next_step) is (code != "resumes")


@pytest.mark.parametrize(("slot", "offset", "mode"), CELLS)
def test_status_and_watch_agree(slot: str, offset: str, mode: str) -> None:
    found, seen = worst(slot, offset, mode), watched(slot, offset, mode)
    if found.code in (PositionCode.RESUMES, PositionCode.SNAPSHOT_AHEAD):  # both are about the next start
        assert seen is None
    else:
        assert seen is not None
        assert (seen.key, seen.severity, seen.next_step) == (found.code, found.severity, found.next_step)


def watched(slot: str, offset: str, mode: str) -> WatchFinding | None:
    """The first finding of the watch about slot and offset, in its own order."""
    live, at = SLOTS[slot], OFFSETS[offset]
    there = () if live is None else (sampled(live),)
    senders = (
        (replace(SENDER, user=live.active_user, application=live.active_application),)
        if live is not None and live.active
        else ()
    )
    sample: Sample = with_connect(
        with_postgres(HEALTHY, slots=there, senders=senders),
        offset_lsn=at[0] if at else None,
        offset_type="INSERT" if at else None,
        offset_unreadable=at == (None,),
        config=positions(slot, offset, mode).config,
    )
    present = later(sample, 3)
    facts = facts_of(history_of([sample, present]), present, Thresholds())
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    found.sort(key=lambda finding: -list(Severity).index(finding.severity))
    keys = {code.value for code in PositionCode} & {key.value for key in VerdictKey}
    return next((finding for finding in found if finding.key in keys), None)


def sampled(live: LiveSlot) -> Slot:
    return replace(
        SLOT,
        kind=live.kind,
        plugin=live.plugin,
        database=live.database,
        active_pid=live.active_pid,
        wal_status=live.wal_status,
        invalidation_reason=live.invalidation_reason,
        restart_lsn=lsn.parsed(live.restart_lsn),
        confirmed_lsn=lsn.parsed(live.confirmed_flush_lsn),
    )


@pytest.mark.parametrize(("slot", "offset", "mode"), CELLS)
def test_a_start_is_refused_with_the_same_step(slot: str, offset: str, mode: str) -> None:
    found, seen = worst(slot, offset, mode), positions(slot, offset, mode)
    if found.severity is not Severity.CRITICAL:
        refuse_unsafe_start("resume", seen)
        return
    with pytest.raises(Refused) as refused:
        refuse_unsafe_start("resume", seen)
    assert refused.value.remedy == f"{found.next_step}; --force goes ahead"


@pytest.mark.parametrize(("slot", "offset", "mode"), CELLS)
def test_a_canary_that_does_not_arrive_gives_the_same_step(slot: str, offset: str, mode: str) -> None:
    found, seen = worst(slot, offset, mode), positions(slot, offset, mode)
    running = ConnectorStatus("shop", "RUNNING", "w", (TaskStatus(0, "RUNNING", "w"),))
    state = canary.PathState(seen.slot, "", running, True, WAL, seen.config, seen.offset)
    said = canary.stopped_at(state, DEFINITION, WAL - 8)
    critical = found.severity is Severity.CRITICAL
    assert (said == (found.cause, found.next_step)) is critical


@pytest.mark.parametrize(("slot", "offset", "mode"), CELLS)
def test_plan_and_doctor_give_the_same_step(slot: str, offset: str, mode: str) -> None:
    found, planned = worst(slot, offset, mode), plan(slot)
    assert (planned.state is State.BLOCKED) is (found.code in ("slot_foreign", "slot_lost", "slot_taken"))
    assert (planned.state is State.MISSING) is (found.code == "slot_missing")
    if found.code in ("slot_foreign", "slot_lost"):
        assert planned.remedy == found.next_step
    judged = Finding(found.code, found.severity, found.cause, found.next_step, "")
    both = doctor._one_step_for_the_slot([*doctor._of_plan(planned), judged])
    if planned.state is not State.PRESENT:
        assert {finding.remedy for finding in both} == {found.next_step}


def plan(slot: str) -> ObjectPlan:
    return slots.plan(SLOTS[slot], DEFINITION, ADMIN)


@pytest.mark.parametrize(("slot", "offset", "mode"), CELLS)
def test_recover_repairs_what_sends_people_to_it(slot: str, offset: str, mode: str) -> None:
    found = worst(slot, offset, mode)
    if found.severity is Severity.CRITICAL:
        repaired = found.next_step == RECOVER or found.code == PositionCode.SLOT_MISSING
        assert (found.code in RECOVERABLE) is repaired


@pytest.mark.parametrize("slot", [name for name in SLOTS if name == "missing" or name.startswith("lost")])
def test_a_refused_reset_gives_the_same_step(slot: str) -> None:
    seen = positions(slot, "at confirmed", "no_data")
    with pytest.raises(Refused) as refused:
        plan_reset(ConnectorStatus("shop", "STOPPED", "w", ()), seen, False)
    assert (refused.value.remedy or "").startswith(offsets.verdicts(seen)[0].next_step)
