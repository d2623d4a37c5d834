"""Ten public reports of outboxes and slots that went wrong: what the watch says to each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outbox_connectors.findings import Severity
from outbox_pipeline.watch.sample import Sample
from outbox_pipeline.watch.verdict import VerdictKey
from watch_samples import (
    HEALTHY,
    MIB,
    SLOT,
    WAL,
    WRITER,
    later,
    verdict,
    with_outbox,
    with_postgres,
    with_server,
    with_settings,
    with_slot,
)


def quiet_outbox_busy_server(seconds: int = 120, rate: int = MIB) -> list[Sample]:
    return [later(HEALTHY, s, wal=s * rate) for s in range(0, seconds, 10)]


def idle_outbox_in_stage() -> list[Sample]:
    """insights-rbac PR 1259: no heartbeat, the outbox idle, WAL filled by others."""
    return quiet_outbox_busy_server()


def idle_tables_and_no_cap() -> list[Sample]:
    """risingwave 16697: 19 GB retained, extended, no cap."""
    steps = [with_settings(s, slot_cap_bytes=None) for s in quiet_outbox_busy_server()]
    return [with_slot(s, safe_wal_bytes=None, wal_status="extended") for s in steps]


def idle_managed_server() -> list[Sample]:
    """Internal heartbeats of the provider switch segments: 16 MiB of log in minutes, nothing of ours."""
    return quiet_outbox_busy_server(240, 200_000)


def many_quiet_streams() -> list[Sample]:
    """pgjdbc 2941: keepalives are not confirmed, each quiet stream stands still."""
    others = tuple(replace(SLOT, name=f"stream_{n}", active_pid=200 + n) for n in range(5))
    return [with_postgres(s, slots=(SLOT, *others)) for s in quiet_outbox_busy_server()]


def restart_lsn_stands_still() -> list[Sample]:
    """airbyte 27647: confirmed_flush_lsn advances, restart_lsn does not."""
    steps = []
    for second in range(0, 130, 10):
        step = later(HEALTHY, second, wal=second * 5 * MIB)
        head = WAL + second * 5 * MIB
        step = with_slot(step, confirmed_lsn=head - 1000, restart_lsn=WAL - 100 * MIB)
        steps.append(replace(with_postgres(step, holders=(WRITER,)), connect=None))
    return steps


def catalog_held_for_weeks() -> list[Sample]:
    """GitLab INC-13566: a pinned catalog_xmin, autovacuum busy in vain."""
    return [with_slot(HEALTHY, catalog_xmin_age=300_000_000)]


def standby_feedback_bloats_the_table() -> list[Sample]:
    """patroni 3153, cloudnative-pg 4802: a physical slot's xmin never advances."""
    feedback = replace(SLOT, name="replica_2", kind="physical", xmin_age=2_000_000, catalog_xmin_age=None)
    return [with_postgres(with_outbox(HEALTHY, dead=500_000, live=100), slots=(SLOT, feedback))]


def replicas_that_cannot_connect() -> list[Sample]:
    """KBVE PR 7795: certificates expired, inactive slots, no cap: 40 GB of WAL for 57 MB of data."""
    free = with_postgres(with_settings(HEALTHY, slot_cap_bytes=None), senders=())
    slot = {
        "active_pid": None,
        "safe_wal_bytes": None,
        "wal_status": "extended",
        "inactive_seconds": 86_400.0,
    }
    steps = [replace(later(free, s, wal=s * MIB), disk_free_bytes=1024 * MIB) for s in range(0, 60, 10)]
    return [with_slot(s, **slot) for s in steps]


def lost_and_nobody_notices() -> list[Sample]:
    """patroni 3641, risingwave 25993: the connector shows RUNNING and tries for half an hour."""
    return [with_slot(HEALTHY, wal_status="lost", restart_lsn=None, safe_wal_bytes=None)]


def orphan_on_the_demoted_node() -> list[Sample]:
    """cloudnative-pg 9969: synced is false on the standby, the failover slot is not copied."""
    standby = with_postgres(with_server(HEALTHY, in_recovery=True), senders=())
    return [with_slot(standby, active_pid=None, failover=True, synced=False)]


@pytest.mark.parametrize(
    ("report", "key", "severity"),
    [
        (idle_outbox_in_stage, VerdictKey.HEARTBEAT_MISSING, Severity.WARNING),
        (idle_tables_and_no_cap, VerdictKey.HEARTBEAT_MISSING, Severity.WARNING),
        (idle_managed_server, VerdictKey.HEARTBEAT_MISSING, Severity.WARNING),
        (many_quiet_streams, VerdictKey.HEARTBEAT_MISSING, Severity.WARNING),
        (restart_lsn_stands_still, VerdictKey.PINNED_BY_TRANSACTION, Severity.CRITICAL),
        (catalog_held_for_weeks, VerdictKey.CATALOG_XMIN_OLD, Severity.CRITICAL),
        (standby_feedback_bloats_the_table, VerdictKey.OUTBOX_NOT_VACUUMABLE, Severity.WARNING),
        (replicas_that_cannot_connect, VerdictKey.CONSUMER_DOWN, Severity.CRITICAL),
        (lost_and_nobody_notices, VerdictKey.SLOT_LOST, Severity.CRITICAL),
        (orphan_on_the_demoted_node, VerdictKey.FAILOVER_NOT_READY, Severity.WARNING),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_a_report_gets_its_cause(
    report: Callable[[], list[Sample]], key: VerdictKey, severity: Severity
) -> None:
    answer = verdict(*report())
    assert (answer.key, answer.severity) == (key, severity), answer.cause


def test_an_idle_slot_without_cap_shows_both() -> None:
    answer = verdict(*idle_tables_and_no_cap())
    assert VerdictKey.WAL_UNBOUNDED in {finding.key for finding in answer.findings}


def test_no_cap_still_has_an_end() -> None:
    answer = verdict(*replicas_that_cannot_connect())
    assert answer.seconds_left is not None
    assert answer.seconds_left.end.value == "disk"
    assert answer.seconds_left.expected is not None
    assert answer.seconds_left.expected < 2000
