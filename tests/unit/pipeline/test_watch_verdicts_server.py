"""Verdicts on servers, holders, failover and groups; and which of two speaks first."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from outbox_connectors.findings import Severity
from outbox_pipeline.watch.assess import RULES
from outbox_pipeline.watch.sample import Sample
from outbox_pipeline.watch.verdict import VerdictKey
from watch_samples import (
    CONNECT_GONE,
    HEALTHY,
    KAFKA,
    KAFKA_GONE,
    MIB,
    POSTGRES_GONE,
    SENDER,
    SLOT,
    WAL,
    WRITER,
    down,
    later,
    outranked,
    postgres_of,
    verdict,
    with_connect,
    with_group,
    with_outbox,
    with_postgres,
    with_server,
    with_settings,
    with_slot,
)

# --- pinned ------------------------------------------------------------------------------------


def pinned(**holder: Any) -> Sample:
    sample = with_slot(HEALTHY, restart_lsn=WAL - 200 * MIB)
    return with_postgres(sample, holders=(replace(WRITER, **holder),))


def test_a_writer_in_another_database_pins_the_slot() -> None:
    answer = verdict(pinned())
    assert (answer.key, answer.severity) == (VerdictKey.PINNED_BY_TRANSACTION, Severity.WARNING)
    for word in ("555", "billing", "billing_app", "report", "20 min"):
        assert word in answer.cause
    command, _, advice = answer.next_step.partition("  # ")
    assert command == "psql -c 'SELECT * FROM pg_stat_activity WHERE pid = 555'"
    assert "pg_terminate_backend(555) rolls it back" in advice


def test_a_prepared_transaction_pins_the_slot() -> None:
    answer = verdict(pinned(kind="prepared", gid="order-17", pid=None, application=None, state=None))
    assert answer.key is VerdictKey.PINNED_BY_TRANSACTION
    command, _, advice = answer.next_step.partition("  # ")
    assert "pg_prepared_xacts" in command
    assert "order-17" in command
    assert "ROLLBACK" not in answer.next_step
    assert "transaction manager" in advice


@pytest.mark.parametrize("holder", [{"xid": None, "xmin_age": 500}, {"seconds": 20.0}])
def test_a_reader_or_a_young_writer_does_not_pin(holder: dict[str, object]) -> None:
    assert verdict(pinned(**holder)).key is VerdictKey.HEALTHY


def test_a_consumer_that_is_behind_is_not_excused_by_a_transaction() -> None:
    behind = with_slot(pinned(), confirmed_lsn=WAL - 190 * MIB)
    assert verdict(with_connect(behind, offset_lsn=WAL - 190 * MIB)).key is VerdictKey.CATCHING_UP


# --- the servers -------------------------------------------------------------------------------


def test_postgres_gone_hides_the_slot() -> None:
    answer = verdict(replace(HEALTHY, postgres=POSTGRES_GONE))
    assert (answer.key, answer.severity) == (VerdictKey.POSTGRES_UNREACHABLE, Severity.WARNING)
    gone = [replace(later(HEALTHY, s), postgres=POSTGRES_GONE) for s in range(0, 120, 30)]
    assert verdict(HEALTHY, *gone[1:]).severity is Severity.WARNING
    assert verdict(HEALTHY, *(later(s, 30) for s in gone)).severity is Severity.CRITICAL


def test_no_cap_is_a_warning() -> None:
    answer = verdict(with_slot(with_settings(HEALTHY, slot_cap_bytes=None), safe_wal_bytes=None))
    assert (answer.key, answer.severity) == (VerdictKey.WAL_UNBOUNDED, Severity.WARNING)


@pytest.mark.parametrize("failing", [True, False])
def test_wal_that_no_slot_explains(failing: bool) -> None:
    answer = verdict(with_server(HEALTHY, wal_dir_bytes=4096 * MIB, archive_failing=failing))
    assert (answer.key, answer.severity) == (VerdictKey.UNEXPLAINED_WAL, Severity.WARNING)
    assert ("archive_command" in answer.cause) is failing


def test_wal_that_a_slot_explains() -> None:
    other = replace(SLOT, name="other", restart_lsn=WAL - 4000 * MIB)
    sample = with_postgres(HEALTHY, slots=(SLOT, other))
    assert verdict(with_server(sample, wal_dir_bytes=4096 * MIB)).key is VerdictKey.HEALTHY


def bloated(**holder: Any) -> Sample:
    here = replace(WRITER, **{"database": "shop", **holder})
    return with_postgres(with_outbox(HEALTHY, dead=200_000, live=10), holders=(here,))


def test_dead_rows_and_a_holder_in_the_same_database() -> None:
    answer = verdict(bloated())
    assert answer.key is VerdictKey.OUTBOX_NOT_VACUUMABLE
    assert "555" in answer.cause
    assert "terminate" not in answer.next_step.partition("#")[0]


def test_a_prepared_transaction_that_keeps_dead_rows_is_not_rolled_back() -> None:
    answer = verdict(bloated(kind="prepared", gid="order's 17", pid=None, application=None, state=None))
    assert answer.key is VerdictKey.OUTBOX_NOT_VACUUMABLE
    assert shlex.split(answer.next_step, comments=True)[2].endswith("gid = 'order''s 17'")
    assert "ROLLBACK" not in answer.next_step


def test_a_standby_query_holds_the_outbox_too() -> None:
    standby = replace(SLOT, name="standby", kind="physical", xmin_age=9000, catalog_xmin_age=None)
    sample = with_postgres(with_outbox(HEALTHY, dead=200_000, live=10), slots=(SLOT, standby))
    answer = verdict(sample)
    assert answer.key is VerdictKey.OUTBOX_NOT_VACUUMABLE
    assert "standby" in answer.cause


def test_a_session_of_another_database_does_not_hold_the_outbox() -> None:
    assert verdict(bloated(database="billing")).key is VerdictKey.HEALTHY
    assert verdict(with_outbox(HEALTHY, dead=200_000, live=10)).key is VerdictKey.HEALTHY  # vacuum will come


@pytest.mark.parametrize(
    ("age", "severity"), [(60_000_000, Severity.WARNING), (250_000_000, Severity.CRITICAL)]
)
def test_an_old_catalog_xmin(age: int, severity: Severity) -> None:
    answer = verdict(with_slot(HEALTHY, catalog_xmin_age=age))
    assert (answer.key, answer.severity) == (VerdictKey.CATALOG_XMIN_OLD, severity)
    lost = with_slot(down(), catalog_xmin_age=age, wal_status="lost", invalidation_reason="wal_removed")
    assert VerdictKey.CATALOG_XMIN_OLD not in outranked(verdict(lost))  # a lost slot holds nothing


def test_slots_nearly_full_names_the_unused() -> None:
    others = tuple(replace(SLOT, name=f"old_{n}", active_pid=None) for n in range(8))
    answer = verdict(with_postgres(HEALTHY, slots=(SLOT, *others)))
    assert answer.key is VerdictKey.SLOTS_NEARLY_FULL
    assert "old_0" in answer.cause
    assert verdict(with_postgres(HEALTHY, slots=(SLOT, *others[:6]))).key is VerdictKey.HEALTHY


# --- failover ----------------------------------------------------------------------------------


def standby(**slot: object) -> Sample:
    return with_slot(down(with_server(HEALTHY, in_recovery=True)), **slot)


def test_a_standby_with_a_synced_copy_is_healthy() -> None:
    assert verdict(standby(failover=True, synced=True, active_pid=None)).key is VerdictKey.HEALTHY
    # While it is copied, a worker of the server's own holds it.
    worker = replace(SENDER, pid=77, backend_type="slotsync worker", application="", reply_at=None)
    copied = with_postgres(standby(failover=True, synced=True, active_pid=77), senders=(worker,))
    assert verdict(copied).key is VerdictKey.HEALTHY


@pytest.mark.parametrize(
    "slot",
    [
        {"failover": True, "synced": False},
        {"failover": True, "synced": True, "wal_status": "lost", "invalidation_reason": "wal_removed"},
    ],
)
def test_a_standby_whose_copy_is_of_no_use(slot: dict[str, object]) -> None:
    answer = verdict(replace(standby(**slot), connect=None))
    assert (answer.key, answer.severity) == (VerdictKey.FAILOVER_NOT_READY, Severity.WARNING)


def test_a_standby_without_a_copy() -> None:
    sample = with_postgres(with_server(HEALTHY, in_recovery=True), slots=(), senders=())
    assert verdict(sample).key is VerdictKey.FAILOVER_NOT_READY


def test_a_slot_without_failover_although_asked_for() -> None:
    asked = replace(HEALTHY, names=replace(HEALTHY.names, failover=True))
    assert verdict(asked).key is VerdictKey.FAILOVER_NOT_READY
    assert verdict(with_slot(asked, failover=True)).key is VerdictKey.HEALTHY
    assert verdict(with_server(asked, version=160015)).key is VerdictKey.HEALTHY


def test_a_slot_that_waits_for_a_standby_that_is_gone() -> None:
    sample = with_settings(with_slot(HEALTHY, failover=True), synchronized_standby_slots=("standby_1",))
    answer = verdict(sample)
    assert answer.key is VerdictKey.FAILOVER_NOT_READY
    assert "standby_1" in answer.cause


# --- the far side ------------------------------------------------------------------------------


def test_a_group_without_members_and_with_lag_has_stopped() -> None:
    answer = verdict(with_group(HEALTHY, end=5100, state="EMPTY", members=0))
    assert (answer.key, answer.severity) == (VerdictKey.GROUP_STOPPED, Severity.WARNING)
    assert "100 records" in answer.cause


def test_a_group_that_commits_nothing_has_stopped() -> None:
    steps = [with_group(later(HEALTHY, s), end=5000 + s) for s in range(0, 140, 10)]
    assert verdict(*steps).key is VerdictKey.GROUP_STOPPED
    assert verdict(*steps[:6]).key is VerdictKey.HEALTHY


def test_a_group_that_never_ran_is_judged_by_the_age_of_what_waits() -> None:
    quiet = [with_group(later(HEALTHY, s), state="DEAD", members=0) for s in range(0, 600, 30)]
    first = with_group(later(HEALTHY, 600), end=5001, state="DEAD", members=0)
    answer = verdict(*quiet, first)
    assert (answer.key, answer.severity) == (VerdictKey.GROUP_STOPPED, Severity.WARNING)
    waiting = [with_group(later(HEALTHY, s), end=5001, state="DEAD", members=0) for s in range(600, 930, 30)]
    assert verdict(*quiet, *waiting).severity is Severity.CRITICAL
    never = [with_group(later(HEALTHY, s), state="DEAD", members=0, committed={}) for s in range(0, 600, 30)]
    answer = verdict(*never)
    assert (answer.key, answer.severity) == (VerdictKey.GROUP_STOPPED, Severity.WARNING)
    assert "never" in answer.cause


def test_a_group_is_not_behind_on_topics_it_does_not_read() -> None:
    other = replace(
        with_group(HEALTHY), kafka=replace(KAFKA, ends={**KAFKA.ends, ("outbox.event.x", 0): 900})
    )
    assert verdict(other).key is VerdictKey.HEALTHY


def test_a_group_without_members_and_without_lag_is_no_news() -> None:
    assert verdict(with_group(HEALTHY, state="EMPTY", members=0)).key is VerdictKey.HEALTHY


def test_a_group_that_falls_behind_is_lagging() -> None:
    steps = [
        with_group(later(HEALTHY, s), end=7000 + 100 * s, committed={("outbox.event.order", 0): 5000 + s})
        for s in range(0, 60, 10)
    ]
    assert verdict(*steps).key is VerdictKey.GROUP_LAGGING


@pytest.mark.parametrize("state", ["PREPARING_REBALANCING", "COMPLETING_REBALANCING", "ASSIGNING", "EMPTY"])
def test_a_rebalance_or_a_restart_of_a_consumer_is_no_critical_verdict(state: str) -> None:
    members = 0 if state == "EMPTY" else 2
    steps = [
        with_group(later(HEALTHY, s), end=5000 + s, state=state, members=members) for s in range(0, 60, 5)
    ]
    assert verdict(*steps).severity is not Severity.CRITICAL


def test_a_group_that_catches_up_is_healthy() -> None:
    steps = [
        with_group(later(HEALTHY, s), end=9000, committed={("outbox.event.order", 0): 5000 + 50 * s})
        for s in range(0, 60, 10)
    ]
    assert verdict(*steps).key is VerdictKey.HEALTHY


# --- catching up -------------------------------------------------------------------------------


def test_a_backlog_that_shrinks_is_catching_up_with_a_time() -> None:
    steps = []
    for second in range(0, 30, 5):
        position = WAL - 500 * MIB + second * 10 * MIB
        step = with_slot(
            later(HEALTHY, second, wal=second * MIB), confirmed_lsn=position, restart_lsn=position
        )
        steps.append(with_connect(step, offset_lsn=position))
    answer = verdict(*steps)
    assert (answer.key, answer.severity) == (VerdictKey.CATCHING_UP, Severity.OK)
    assert answer.catch_up_seconds == pytest.approx(275 / 9, rel=0.05)
    assert answer.seconds_left is None


# --- the table ---------------------------------------------------------------------------------


def test_the_more_urgent_speaks_first_and_then_the_more_exact() -> None:
    tired = with_slot(with_connect(down(), state="STOPPED", tasks=()), catalog_xmin_age=250_000_000)
    answer = verdict(tired)
    assert answer.key is VerdictKey.CATALOG_XMIN_OLD  # critical
    assert [finding.key for finding in answer.findings] == [
        VerdictKey.CONNECTOR_STOPPED,
        VerdictKey.CONSUMER_DOWN,
    ]


def test_every_key_has_a_rule_or_is_the_absence_of_one() -> None:
    by_rule = {rule.__name__ for rule in RULES}
    assert {key.value for key in VerdictKey} - by_rule == {"healthy", "idle"}
    assert len(by_rule) == len(RULES)


def test_what_was_not_asked_is_not_missed() -> None:
    answer = verdict(replace(HEALTHY, connect=None, kafka=None))
    assert (answer.key, answer.unseen) == (VerdictKey.HEALTHY, ())


def test_missing_rights_are_named_and_do_not_spoil_the_answer() -> None:
    answer = verdict(with_server(HEALTHY, monitor=False, wal_dir_bytes=None))
    assert answer.key is VerdictKey.HEALTHY
    assert "GRANT pg_monitor" in answer.notes[0]


def test_everything_missing_still_gives_an_answer() -> None:
    answer = verdict(replace(HEALTHY, postgres=POSTGRES_GONE, connect=CONNECT_GONE, kafka=KAFKA_GONE))
    assert answer.key is VerdictKey.POSTGRES_UNREACHABLE
    assert len(answer.unseen) == 3
    assert KAFKA.groups
    assert postgres_of(HEALTHY).slots
