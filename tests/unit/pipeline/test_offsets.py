"""What the four positions mean, and what a change of the stored one would skip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from outbox_connectors.findings import Severity
from outbox_pipeline.connect.client import ConnectorStatus, SourceOffset
from outbox_pipeline.connect.offset_changes import plan_reset
from outbox_pipeline.connect.offsets import (
    HeldTransaction,
    Positions,
    ResumeEffect,
    effect,
    refuse_unsafe_start,
    verdicts,
)
from outbox_pipeline.errors import Refused
from outbox_pipeline.servers.slots import LiveSlot

CONFIG = {
    "database.dbname": "shop",
    "plugin.name": "pgoutput",
    "snapshot.mode": "no_data",
    "slot.name": "shop_outbox",
}
SNAPSHOT = {**CONFIG, "snapshot.mode": "initial"}
SLOT = LiveSlot(
    plugin="pgoutput",
    kind="logical",
    database="shop",
    temporary=False,
    active=True,
    active_pid=7,
    active_user="shop_cdc",
    active_application="Debezium Streaming",
    wal_status="reserved",
    restart_lsn="0/100",
    confirmed_flush_lsn="0/200",
    safe_wal_size=None,
    conflicting=None,
    invalidation_reason=None,
    failover=None,
    inactive_since=None,
)


def stored(position: int | None, commit: int | None = None) -> SourceOffset:
    return SourceOffset("shop", position, position, commit or position, "INSERT", False, {})


def positions(
    offset: SourceOffset | None = None, slot: LiveSlot | None = SLOT, config: Mapping[str, str] = CONFIG
) -> Positions:
    return Positions("shop_outbox", config, offset, slot, 0x1000)


LOST = replace(SLOT, wal_status="lost", restart_lsn=None, active=False, active_application=None)
IDLE = replace(SLOT, invalidation_reason="idle_timeout")
OTHER = replace(SLOT, active_application="pg_recvlogical")
DECODERBUFS = replace(SLOT, plugin="decoderbufs")
ELSEWHERE = replace(SLOT, database="billing")


@pytest.mark.parametrize(
    ("seen", "code", "severity"),
    [
        (positions(stored(0x300)), "resumes", Severity.OK),
        (positions(), "resumes", Severity.OK),
        (positions(stored(0x300), None), "slot_missing", Severity.CRITICAL),
        (positions(None, None), "slot_missing", Severity.CRITICAL),
        (positions(stored(0x300), LOST), "slot_lost", Severity.CRITICAL),
        (positions(stored(0x300), IDLE), "slot_lost", Severity.CRITICAL),
        (positions(stored(0x300), OTHER), "slot_taken", Severity.CRITICAL),
        (positions(stored(0x300), DECODERBUFS), "slot_foreign", Severity.CRITICAL),
        (positions(stored(0x300), ELSEWHERE), "slot_foreign", Severity.CRITICAL),
        (positions(stored(0xFF)), "offset_behind_slot", Severity.CRITICAL),
        (positions(stored(0x1001)), "offset_ahead_of_slot", Severity.CRITICAL),
        (positions(stored(0x150)), "offset_behind_slot", Severity.WARNING),
        (positions(stored(None)), "offset_unreadable", Severity.CRITICAL),
        (positions(config=SNAPSHOT), "snapshot_ahead", Severity.WARNING),
        (
            positions(stored(1), config={**CONFIG, "snapshot.mode": "initial"}),
            "offset_behind_slot",
            Severity.CRITICAL,
        ),
    ],
)
def test_each_state_has_its_verdict(seen: Positions, code: str, severity: Severity) -> None:
    first = verdicts(seen)[0]
    assert (first.code, first.severity) == (code, severity)
    assert first.cause
    assert bool(first.next_step) is (code != "resumes")


def test_the_worst_comes_first() -> None:
    seen = positions(stored(0x150), replace(SLOT, active_application="other"))
    assert [v.code for v in verdicts(seen)] == ["slot_taken", "offset_behind_slot"]


def test_a_missing_slot_is_worse_where_nobody_checks() -> None:
    unchecked = positions(stored(0x300), None, {**CONFIG, "offset.mismatch.strategy": "trust_slot"})
    assert "never sent" in verdicts(unchecked)[0].cause
    assert "fails" in verdicts(positions(stored(0x300), None))[0].cause


def test_only_a_critical_verdict_refuses_a_start() -> None:
    refuse_unsafe_start("resume", positions(stored(0x300)))
    refuse_unsafe_start("resume", positions(stored(0x150)))
    with pytest.raises(Refused, match="resume refused: the stored offset lies"):
        refuse_unsafe_start("resume", positions(stored(0x1001)))


def held(commit: int, rows: int, up_to: int = 0, meets: bool = False, known: int = 0) -> HeldTransaction:
    return HeldTransaction(commit, rows, up_to, meets, known)


@pytest.mark.parametrize(
    ("transactions", "position", "offset", "expected"),
    [
        ([], 0x500, None, ResumeEffect(0, 0)),
        ([held(0x400, 2), held(0x600, 3)], 0x500, None, ResumeEffect(2, 0)),
        ([held(0x400, 2), held(0x600, 3)], 0x400, None, ResumeEffect(0, 0)),
        ([held(0x400, 2), held(0x600, 3)], 0x601, None, ResumeEffect(5, 0)),
        # what the stored offset knows to be delivered is not lost, but comes again
        ([held(0x400, 2), held(0x600, 3)], 0x500, stored(0x600, 0x550), ResumeEffect(0, 0)),
        ([held(0x400, 2), held(0x600, 3)], 0x200, stored(0x600, 0x550), ResumeEffect(0, 2)),
        # in the middle of a transaction: its first rows were delivered
        ([held(0x600, 3, known=2)], 0x700, stored(0x580, 0x550), ResumeEffect(1, 0)),
        ([held(0x600, 3, known=2)], 0x300, stored(0x580, 0x550), ResumeEffect(0, 2)),
        # a row that lies exactly there takes those before it along
        ([held(0x600, 5, up_to=3, meets=True)], 0x500, None, ResumeEffect(3, 0)),
        ([held(0x600, 5, up_to=3)], 0x500, None, ResumeEffect(0, 0)),
    ],
)
def test_rows_are_counted(
    transactions: list[HeldTransaction], position: int, offset: SourceOffset | None, expected: ResumeEffect
) -> None:
    assert effect(transactions, position, 0x200, offset) == expected


STOPPED = ConnectorStatus("shop", "STOPPED", "w", ())


def test_a_reset_names_where_the_connector_starts_then() -> None:
    change = plan_reset(STOPPED, positions(stored(0x300)), False)
    assert (change.have, change.want) == ("0/300", None)
    assert "then starts at 0/200" in change.text
    initial = positions(stored(0x300), config=SNAPSHOT)
    assert "sends every row of the table again" in plan_reset(STOPPED, initial, False).text


def test_a_reset_without_a_slot_needs_permission() -> None:
    for slot in (None, LOST):
        with pytest.raises(Refused, match="never sent"):
            plan_reset(STOPPED, positions(stored(0x300), slot), False)
        assert plan_reset(STOPPED, positions(stored(0x300), slot), True).action == "reset"


def test_offsets_of_what_runs_are_left_alone() -> None:
    running = ConnectorStatus("shop", "RUNNING", "w", ())
    with pytest.raises(Refused, match="it is RUNNING"):
        plan_reset(running, positions(stored(0x300)), True)
