"""Each verdict: it fires on its evidence, keeps quiet without it, and outranks what it explains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outbox_connectors.findings import Severity
from outbox_pipeline.watch.assess import RULES
from outbox_pipeline.watch.sample import ConnectSample, Publication, Sample, TaskSample
from outbox_pipeline.watch.verdict import Key, Unseen, Verdict
from watch_samples import (
    HEALTHY,
    KAFKA,
    MIB,
    NOW,
    SENDER,
    SLOT,
    WAL,
    WRITER,
    later,
    postgres_of,
    verdict,
    with_connect,
    with_group,
    with_outbox,
    with_postgres,
    with_sender,
    with_server,
    with_settings,
    with_slot,
)

CONNECT_GONE = Unseen("connect", "http://connect:8083: connection refused", "check connect.url")
KAFKA_GONE = Unseen("kafka", "kafka:9092: connection refused", "check bootstrap.servers")
POSTGRES_GONE = Unseen("postgres", "db:5432: connection refused", "check host and port")


def outranked(answer: Verdict) -> set[Key]:
    return {finding.key for finding in answer.findings}


def down(sample: Sample = HEALTHY) -> Sample:
    """Nobody holds the slot."""
    return with_slot(with_postgres(sample, senders=()), active_pid=None)


# --- nothing wrong -----------------------------------------------------------------------------


def test_a_healthy_pipeline_is_healthy() -> None:
    answer = verdict(with_outbox(HEALTHY, inserted=4900), later(HEALTHY, 10))
    assert (answer.key, answer.severity, answer.findings, answer.unseen) == (Key.HEALTHY, Severity.OK, (), ())


def test_one_sample_is_enough_for_healthy() -> None:
    assert verdict(HEALTHY).key is Key.HEALTHY


def test_nothing_written_for_long_is_idle() -> None:
    answer = verdict(HEALTHY, later(HEALTHY, 301))
    assert (answer.key, answer.severity) == (Key.IDLE, Severity.OK)


def test_the_sawtooth_of_a_slow_offset_flush_stays_healthy() -> None:
    # Connect flushes offsets every 60 s by default, so the position moves in steps of a minute.
    steps = [with_outbox(later(HEALTHY, s, wal=s * 10_000), inserted=5000 + s) for s in range(0, 60, 5)]
    assert verdict(*steps).key is Key.HEALTHY


# --- the slot ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["wal_removed", "rows_removed", "wal_level_insufficient", "idle_timeout"])
def test_a_slot_with_a_reason_is_lost(reason: str) -> None:
    answer = verdict(with_slot(down(), wal_status="lost", invalidation_reason=reason))
    assert (answer.key, answer.severity) == (Key.SLOT_LOST, Severity.CRITICAL)
    assert reason in answer.cause
    assert Key.CONSUMER_DOWN not in outranked(answer)  # that a lost slot has no consumer is no news


def test_a_slot_lost_before_17_has_its_reason_from_its_position() -> None:
    gone = with_slot(down(), wal_status="lost", restart_lsn=None, safe_wal_bytes=None, conflicting=True)
    assert "wal_removed" in verdict(gone).cause
    conflicting = with_slot(down(), wal_status="lost", conflicting=True)
    assert "rows_removed" in verdict(conflicting).cause


def test_an_idle_timeout_keeps_restart_lsn_and_retains_nothing() -> None:
    answer = verdict(with_slot(down(), wal_status="lost", invalidation_reason="idle_timeout", restart_lsn=5))
    assert answer.key is Key.SLOT_LOST
    assert answer.seconds_left is None


def test_a_missing_slot_outranks_a_failed_task() -> None:
    sample = with_connect(
        with_postgres(HEALTHY, slots=(), senders=()), tasks=(TaskSample(0, "FAILED", "M1"),)
    )
    answer = verdict(HEALTHY, later(sample, 5))
    assert (answer.key, answer.severity) == (Key.SLOT_MISSING, Severity.CRITICAL)
    assert "a moment ago" in answer.cause
    assert Key.TASK_FAILED in outranked(answer)


def test_unreserved_is_the_rescue_window() -> None:
    sample = with_slot(down(), wal_status="unreserved", safe_wal_bytes=-2 * MIB, restart_lsn=WAL - 300 * MIB)
    answer = verdict(sample)
    assert (answer.key, answer.severity) == (Key.RESCUE_WINDOW, Severity.CRITICAL)
    assert "600MB" in answer.next_step
    assert "pg_reload_conf" in answer.next_step
    assert Key.CONSUMER_DOWN in outranked(answer)


def test_extended_is_no_rescue_window() -> None:
    assert verdict(with_slot(HEALTHY, wal_status="extended")).key is Key.HEALTHY


@pytest.mark.parametrize(("version", "words"), [(180006, "without an error"), (170011, "again for ever")])
def test_a_missing_publication_is_critical_at_once(version: int, words: str) -> None:
    answer = verdict(with_server(with_postgres(HEALTHY, publication=None), version=version))
    assert (answer.key, answer.severity) == (Key.PUBLICATION_MISSING, Severity.CRITICAL)
    assert words in answer.cause


@pytest.mark.parametrize(
    ("publication", "words"),
    [
        (Publication(True, False, False), "is not in publication"),
        (Publication(False, True, False), "does not publish inserts"),
        (Publication(True, True, True), "only some rows"),
    ],
)
def test_a_table_that_is_not_published_is_critical_at_once(publication: Publication, words: str) -> None:
    answer = verdict(with_postgres(HEALTHY, publication=publication))
    assert (answer.key, answer.severity) == (Key.TABLE_NOT_PUBLISHED, Severity.CRITICAL)
    assert words in answer.cause
    assert "ALTER PUBLICATION" in answer.next_step


def test_a_missing_table_is_named() -> None:
    answer = verdict(with_postgres(HEALTHY, outbox=None, publication=Publication(True, False, False)))
    assert answer.key is Key.TABLE_MISSING


# --- slot and offset ---------------------------------------------------------------------------


def test_an_offset_beyond_the_log_means_an_older_server() -> None:
    restored = with_connect(HEALTHY, offset_lsn=WAL + 100 * MIB)
    answer = verdict(restored)
    assert (answer.key, answer.severity) == (Key.OFFSET_AHEAD_OF_SLOT, Severity.CRITICAL)


def test_an_offset_of_the_sample_before_beyond_the_log_is_enough() -> None:
    before = with_connect(HEALTHY, offset_lsn=WAL - 10)
    after = with_server(later(before, 5), wal_position=WAL - 20, timeline=2)
    assert verdict(before, with_slot(after, confirmed_lsn=WAL - 2000)).key is Key.OFFSET_AHEAD_OF_SLOT


def test_an_offset_stored_after_postgres_answered_is_no_alarm() -> None:
    assert verdict(HEALTHY, with_connect(later(HEALTHY, 3), offset_lsn=WAL + 5000)).key is Key.HEALTHY


def test_a_slot_made_anew_is_beyond_the_stored_offset() -> None:
    sample = with_slot(with_connect(HEALTHY, offset_lsn=WAL - 50_000), restart_lsn=WAL - 2000)
    answer = verdict(sample)
    assert (answer.key, answer.severity) == (Key.OFFSET_BEHIND_SLOT, Severity.CRITICAL)


def test_an_older_offset_restored_is_a_warning() -> None:
    before = with_slot(with_connect(HEALTHY, offset_lsn=WAL - 50_000), restart_lsn=WAL - 90_000)
    answer = verdict(before, later(before, 3))
    assert (answer.key, answer.severity) == (Key.OFFSET_BEHIND_SLOT, Severity.WARNING)


def test_a_position_confirmed_after_the_offset_was_read_is_no_alarm() -> None:
    now = with_slot(with_connect(later(HEALTHY, 3), offset_lsn=WAL - 1000), confirmed_lsn=WAL - 500)
    assert verdict(HEALTHY, now).key is Key.HEALTHY


# --- who consumes ------------------------------------------------------------------------------


def test_a_foreign_process_on_the_slot_is_named() -> None:
    sample = with_sender(HEALTHY, application="pg_recvlogical", user="postgres")
    failed = with_connect(sample, tasks=(TaskSample(0, "FAILED", "slot is active for PID 100"),))
    answer = verdict(failed)
    assert (answer.key, answer.severity) == (Key.SLOT_TAKEN, Severity.CRITICAL)
    assert "pg_recvlogical" in answer.cause
    assert "pg_terminate_backend(100)" in answer.next_step
    assert Key.TASK_FAILED in outranked(answer)


def test_a_session_that_calls_the_sql_functions_takes_the_slot_too() -> None:
    assert verdict(with_sender(HEALTHY, application="", backend_type="client backend")).key is Key.SLOT_TAKEN


@pytest.mark.parametrize("application", ["Debezium Streaming", "Debezium General", "", None])
def test_our_connector_or_one_we_may_not_see_does_not_take_it(application: str | None) -> None:
    assert verdict(with_sender(HEALTHY, application=application)).key is Key.HEALTHY


def test_a_failed_task_hides_behind_a_running_connector() -> None:
    answer = verdict(with_connect(down(), tasks=(TaskSample(0, "FAILED", "FATAL: password authentication"),)))
    assert (answer.key, answer.severity) == (Key.TASK_FAILED, Severity.CRITICAL)
    assert "password authentication" in answer.cause
    assert Key.CONSUMER_DOWN in outranked(answer)


def test_a_failed_connector_without_tasks_counts_too() -> None:
    assert verdict(with_connect(down(), state="FAILED", tasks=(), trace_line="boom")).key is Key.TASK_FAILED


@pytest.mark.parametrize(
    ("state", "key"), [("STOPPED", Key.CONNECTOR_STOPPED), ("PAUSED", Key.CONNECTOR_PAUSED)]
)
def test_what_was_done_on_purpose_is_called_so(state: str, key: Key) -> None:
    sample = with_connect(HEALTHY if state == "PAUSED" else down(), state=state, tasks=())
    answer = verdict(sample)
    assert (answer.key, answer.severity, answer.next_step) == (
        key,
        Severity.WARNING,
        "outboxctl connectors resume",
    )


def test_connect_gone_and_slot_free_is_connect_unreachable() -> None:
    answer = verdict(replace(down(), connect=CONNECT_GONE))
    assert (answer.key, answer.severity) == (Key.CONNECT_UNREACHABLE, Severity.WARNING)
    assert Key.CONSUMER_DOWN in outranked(answer)
    assert answer.unseen == (CONNECT_GONE,)


def test_connect_gone_for_long_is_critical() -> None:
    gone = replace(down(), connect=CONNECT_GONE)
    assert verdict(*(later(gone, s) for s in range(0, 330, 30))).severity is Severity.CRITICAL


def test_connect_gone_while_the_slot_is_in_use_says_that_events_flow() -> None:
    answer = verdict(replace(HEALTHY, connect=CONNECT_GONE))
    assert answer.key is Key.CONNECT_UNREACHABLE
    assert "still in use" in answer.cause


@pytest.mark.parametrize(
    ("connect", "words"),
    [
        (ConnectSample(state=None), "knows no connector"),
        (ConnectSample(state="RUNNING"), "no task"),
        (None, "not asked"),
    ],
)
def test_a_free_slot_without_better_reason_is_consumer_down(
    connect: ConnectSample | None, words: str
) -> None:
    answer = verdict(replace(down(), connect=connect))
    assert (answer.key, answer.severity) == (Key.CONSUMER_DOWN, Severity.WARNING)
    assert words in answer.cause


def test_a_slot_free_for_long_is_critical() -> None:
    assert verdict(with_slot(down(), inactive_seconds=301.0)).severity is Severity.CRITICAL


# --- frozen, looping, not acking ---------------------------------------------------------------


def test_a_silent_consumer_is_frozen_and_not_a_dead_sink() -> None:
    frozen = [
        with_outbox(later(HEALTHY, s, wal=s * MIB, reply=False), inserted=5000 + s) for s in range(0, 45, 5)
    ]
    answer = verdict(*(with_connect(s, offset_lsn=WAL - 1000) for s in frozen))
    assert (answer.key, answer.severity) == (Key.CONSUMER_FROZEN, Severity.WARNING)
    assert Key.SINK_NOT_ACKING not in outranked(answer)


def test_a_frozen_consumer_explains_that_connect_does_not_answer() -> None:
    answer = verdict(with_sender(replace(HEALTHY, connect=CONNECT_GONE), reply_at=NOW - 45))
    assert answer.key is Key.CONSUMER_FROZEN
    assert Key.CONNECT_UNREACHABLE in outranked(answer)


def test_a_client_whose_clock_is_wrong_is_not_frozen() -> None:
    # It answers every 5 s, but its clock is 50 s behind the server's.
    skewed = [with_sender(later(HEALTHY, s), reply_at=NOW - 50 + s) for s in range(0, 30, 5)]
    assert verdict(*skewed).key is Key.HEALTHY
    # An age that wal_sender_timeout would not have allowed can only be the clocks.
    assert verdict(with_sender(HEALTHY, reply_at=NOW - 500)).key is Key.HEALTHY
    assert verdict(with_sender(HEALTHY, reply_at=NOW + 500)).key is Key.HEALTHY


def test_a_long_wal_sender_timeout_makes_silence_normal() -> None:
    slow = with_settings(HEALTHY, wal_sender_timeout=300.0)
    assert verdict(with_sender(slow, reply_at=NOW - 100)).key is Key.HEALTHY
    assert verdict(with_sender(slow, reply_at=NOW - 200)).key is Key.CONSUMER_FROZEN


def test_spilling_again_and_again_is_a_decode_loop() -> None:
    rounds = [
        with_sender(
            with_slot(later(HEALTHY, 20 * n), spill_bytes=n * 50 * MIB, active_pid=100 + n), pid=100 + n
        )
        for n in range(4)
    ]
    answer = verdict(*rounds)
    assert answer.key is Key.DECODE_LOOP
    assert "150 MB" in answer.cause


def test_a_loop_outranks_the_gap_between_two_rounds() -> None:
    rounds = [with_slot(down(later(HEALTHY, 20 * n)), spill_bytes=n * 50 * MIB) for n in range(4)]
    answer = verdict(*rounds)
    assert answer.key is Key.DECODE_LOOP
    assert Key.CONSUMER_DOWN in outranked(answer)


def test_one_large_transaction_spills_in_one_session_and_is_no_loop() -> None:
    spills = [with_slot(later(HEALTHY, 20 * n), spill_bytes=n * 50 * MIB) for n in range(4)]
    assert verdict(*spills).key is Key.HEALTHY


def growing(seconds: int, rows: int = 1, **sender: object) -> list[Sample]:
    """The consumer answers, WAL grows by 1 MiB/s, the position stands still."""
    steps = []
    for second in range(0, seconds + 1, 10):
        step = later(HEALTHY, second, wal=second * MIB)
        step = with_outbox(step, inserted=5000 + rows * second)
        steps.append(with_sender(step, **sender) if sender else step)
    return steps


def test_rows_without_acknowledgement_are_a_dead_sink() -> None:
    answer = verdict(*growing(100, flush_lag=100.0, reply_at=None))
    assert (answer.key, answer.severity) == (Key.SINK_NOT_ACKING, Severity.WARNING)
    assert "rows written since" in answer.cause


def test_a_dead_sink_becomes_critical_with_time() -> None:
    assert verdict(*growing(330)).severity is Severity.CRITICAL


def test_a_short_pause_is_no_dead_sink() -> None:
    assert verdict(*growing(60)).key is not Key.SINK_NOT_ACKING


def test_kafka_gone_makes_a_dead_sink_certain_at_once() -> None:
    answer = verdict(*(replace(s, kafka=KAFKA_GONE) for s in growing(20)))
    assert (answer.key, answer.severity) == (Key.SINK_NOT_ACKING, Severity.WARNING)
    assert "connection refused" in answer.cause
    assert Key.KAFKA_UNREACHABLE in outranked(answer)


def test_kafka_gone_only_for_us_is_not_a_dead_sink() -> None:
    flowing = [with_slot(s, confirmed_lsn=WAL + n * MIB * 10 - 1000) for n, s in enumerate(growing(40))]
    answer = verdict(*(replace(with_connect(s, offset_lsn=None), kafka=KAFKA_GONE) for s in flowing))
    assert answer.key is Key.KAFKA_UNREACHABLE


def test_kafka_gone_on_a_quiet_pipeline_is_kafka_unreachable() -> None:
    answer = verdict(replace(HEALTHY, kafka=KAFKA_GONE))
    assert (answer.key, answer.severity) == (Key.KAFKA_UNREACHABLE, Severity.WARNING)


def test_ticks_without_acknowledgement_are_a_dead_sink_even_without_events() -> None:
    answer = verdict(*(with_postgres(s, tickers=1) for s in growing(100, rows=0)))
    assert answer.key is Key.SINK_NOT_ACKING


def test_an_offset_that_moves_is_a_sink_that_takes_events() -> None:
    # Debezium confirms to the slot with the next record only; the stored offset is the better witness.
    steps = growing(200)
    moved = [with_connect(s, offset_lsn=WAL - 1000 + 20_000 * n) for n, s in enumerate(steps)]
    assert verdict(*moved).key is not Key.SINK_NOT_ACKING


def test_a_row_after_a_long_quiet_time_has_not_waited_for_that_time() -> None:
    quiet = [later(HEALTHY, second) for second in range(0, 700, 10)]
    row = with_outbox(later(HEALTHY, 705, wal=400), inserted=5001)
    assert verdict(*quiet, row).key is Key.HEALTHY


def test_a_row_that_is_counted_after_it_was_confirmed_is_not_waiting() -> None:
    """Statistics come up to a second late: the position has already moved past the row."""
    before = with_slot(HEALTHY, confirmed_lsn=WAL - 5000, restart_lsn=WAL - 6000)
    counted = [with_outbox(later(HEALTHY, s, wal=s), inserted=5001) for s in range(6, 200, 5)]
    assert verdict(before, later(HEALTHY, 5), *counted).key is Key.HEALTHY


def test_one_look_is_enough_where_the_server_knows_how_long_it_stands() -> None:
    first, second = growing(10, flush_lag=150.0)
    assert verdict(first, second).key is Key.SINK_NOT_ACKING


def test_a_consumer_that_just_came_back_has_not_waited_since_it_went() -> None:
    gone = [with_outbox(down(later(HEALTHY, s, wal=s * 100)), inserted=5000 + s) for s in range(0, 200, 10)]
    back = [with_outbox(later(HEALTHY, s, wal=s * 100), inserted=5000 + s) for s in range(200, 230, 10)]
    assert verdict(*gone, *back).key is not Key.SINK_NOT_ACKING


def test_kafka_gone_explains_that_connect_and_the_slot_are_gone_too() -> None:
    """A worker keeps its state in Kafka: without it, REST hangs and the task ends (seen on 4.3.1)."""
    answer = verdict(replace(down(), connect=CONNECT_GONE, kafka=KAFKA_GONE))
    assert answer.key is Key.KAFKA_UNREACHABLE
    assert outranked(answer) == {Key.CONNECT_UNREACHABLE, Key.CONSUMER_DOWN}


def test_a_ticker_that_just_came_has_not_waited_since_the_last_watch() -> None:
    before = [later(HEALTHY, s, wal=s) for s in (0, 5)]
    now = [with_postgres(later(HEALTHY, s, wal=s), tickers=1) for s in (200, 202, 204)]
    assert verdict(*before, *now).key is Key.HEALTHY


# --- idle and stuck look alike -----------------------------------------------------------------


def test_foreign_wal_and_a_quiet_outbox_is_a_missing_heartbeat() -> None:
    answer = verdict(*growing(100, rows=0, flush_lag=100.0))
    assert (answer.key, answer.severity) == (Key.HEARTBEAT_MISSING, Severity.WARNING)
    assert "outboxctl watch" in answer.cause + answer.next_step


def test_wal_of_another_database_is_recognised_sooner() -> None:
    # Nothing is sent, so there is no lag and no transaction is counted.
    answer = verdict(*growing(40, rows=0, flush_lag=None))
    assert answer.key is Key.HEARTBEAT_MISSING


def test_little_wal_of_an_idle_server_is_no_missing_heartbeat() -> None:
    steps = [later(HEALTHY, second, wal=second * 100) for second in range(0, 200, 20)]
    assert verdict(*steps).key is Key.HEALTHY


def test_a_confirmed_position_that_moves_is_no_missing_heartbeat() -> None:
    steps = [with_slot(s, confirmed_lsn=WAL + n * 1000) for n, s in enumerate(growing(100, rows=0))]
    assert verdict(*(with_connect(s, offset_lsn=None) for s in steps)).key is not Key.HEARTBEAT_MISSING


# --- pinned ------------------------------------------------------------------------------------


def pinned(**holder: Any) -> Sample:
    sample = with_slot(HEALTHY, restart_lsn=WAL - 200 * MIB)
    return with_postgres(sample, holders=(replace(WRITER, **holder),))


def test_a_writer_in_another_database_pins_the_slot() -> None:
    answer = verdict(pinned())
    assert (answer.key, answer.severity) == (Key.PINNED_BY_TRANSACTION, Severity.WARNING)
    for word in ("555", "billing", "billing_app", "report", "20 min"):
        assert word in answer.cause
    assert "pg_terminate_backend(555)" in answer.next_step


def test_a_prepared_transaction_pins_the_slot() -> None:
    answer = verdict(pinned(kind="prepared", gid="order-17", pid=None, application=None, state=None))
    assert answer.key is Key.PINNED_BY_TRANSACTION
    assert "ROLLBACK PREPARED" in answer.next_step


@pytest.mark.parametrize("holder", [{"xid": None, "xmin_age": 500}, {"seconds": 20.0}])
def test_a_reader_or_a_young_writer_does_not_pin(holder: dict[str, object]) -> None:
    assert verdict(pinned(**holder)).key is Key.HEALTHY


def test_a_consumer_that_is_behind_is_not_excused_by_a_transaction() -> None:
    behind = with_slot(pinned(), confirmed_lsn=WAL - 190 * MIB)
    assert verdict(with_connect(behind, offset_lsn=WAL - 190 * MIB)).key is Key.CATCHING_UP


# --- the servers -------------------------------------------------------------------------------


def test_postgres_gone_hides_the_slot() -> None:
    answer = verdict(replace(HEALTHY, postgres=POSTGRES_GONE))
    assert (answer.key, answer.severity) == (Key.POSTGRES_UNREACHABLE, Severity.WARNING)
    gone = [replace(later(HEALTHY, s), postgres=POSTGRES_GONE) for s in range(0, 120, 30)]
    assert verdict(HEALTHY, *gone[1:]).severity is Severity.WARNING
    assert verdict(HEALTHY, *(later(s, 30) for s in gone)).severity is Severity.CRITICAL


def test_no_cap_is_a_warning() -> None:
    answer = verdict(with_slot(with_settings(HEALTHY, slot_cap_bytes=None), safe_wal_bytes=None))
    assert (answer.key, answer.severity) == (Key.WAL_UNBOUNDED, Severity.WARNING)


@pytest.mark.parametrize("failing", [True, False])
def test_wal_that_no_slot_explains(failing: bool) -> None:
    answer = verdict(with_server(HEALTHY, wal_dir_bytes=4096 * MIB, archive_failing=failing))
    assert (answer.key, answer.severity) == (Key.UNEXPLAINED_WAL, Severity.WARNING)
    assert ("archive_command" in answer.cause) is failing


def test_wal_that_a_slot_explains() -> None:
    other = replace(SLOT, name="other", restart_lsn=WAL - 4000 * MIB)
    sample = with_postgres(HEALTHY, slots=(SLOT, other))
    assert verdict(with_server(sample, wal_dir_bytes=4096 * MIB)).key is Key.HEALTHY


def bloated(**holder: Any) -> Sample:
    here = replace(WRITER, **{"database": "shop", **holder})
    return with_postgres(with_outbox(HEALTHY, dead=200_000, live=10), holders=(here,))


def test_dead_rows_and_a_holder_in_the_same_database() -> None:
    answer = verdict(bloated())
    assert answer.key is Key.OUTBOX_NOT_VACUUMABLE
    assert "555" in answer.cause


def test_a_standby_query_holds_the_outbox_too() -> None:
    standby = replace(SLOT, name="standby", kind="physical", xmin_age=9000, catalog_xmin_age=None)
    sample = with_postgres(with_outbox(HEALTHY, dead=200_000, live=10), slots=(SLOT, standby))
    answer = verdict(sample)
    assert answer.key is Key.OUTBOX_NOT_VACUUMABLE
    assert "standby" in answer.cause


def test_a_session_of_another_database_does_not_hold_the_outbox() -> None:
    assert verdict(bloated(database="billing")).key is Key.HEALTHY
    assert verdict(with_outbox(HEALTHY, dead=200_000, live=10)).key is Key.HEALTHY  # vacuum will come


@pytest.mark.parametrize(
    ("age", "severity"), [(60_000_000, Severity.WARNING), (250_000_000, Severity.CRITICAL)]
)
def test_an_old_catalog_xmin(age: int, severity: Severity) -> None:
    answer = verdict(with_slot(HEALTHY, catalog_xmin_age=age))
    assert (answer.key, answer.severity) == (Key.CATALOG_XMIN_OLD, severity)
    lost = with_slot(down(), catalog_xmin_age=age, wal_status="lost", invalidation_reason="wal_removed")
    assert Key.CATALOG_XMIN_OLD not in outranked(verdict(lost))  # a lost slot holds nothing


def test_slots_nearly_full_names_the_unused() -> None:
    others = tuple(replace(SLOT, name=f"old_{n}", active_pid=None) for n in range(8))
    answer = verdict(with_postgres(HEALTHY, slots=(SLOT, *others)))
    assert answer.key is Key.SLOTS_NEARLY_FULL
    assert "old_0" in answer.cause
    assert verdict(with_postgres(HEALTHY, slots=(SLOT, *others[:6]))).key is Key.HEALTHY


# --- failover ----------------------------------------------------------------------------------


def standby(**slot: object) -> Sample:
    return with_slot(down(with_server(HEALTHY, in_recovery=True)), **slot)


def test_a_standby_with_a_synced_copy_is_healthy() -> None:
    assert verdict(standby(failover=True, synced=True, active_pid=None)).key is Key.HEALTHY
    # While it is copied, a worker of the server's own holds it.
    worker = replace(SENDER, pid=77, backend_type="slotsync worker", application="", reply_at=None)
    copied = with_postgres(standby(failover=True, synced=True, active_pid=77), senders=(worker,))
    assert verdict(copied).key is Key.HEALTHY


@pytest.mark.parametrize(
    "slot",
    [
        {"failover": True, "synced": False},
        {"failover": True, "synced": True, "wal_status": "lost", "invalidation_reason": "wal_removed"},
    ],
)
def test_a_standby_whose_copy_is_of_no_use(slot: dict[str, object]) -> None:
    answer = verdict(replace(standby(**slot), connect=None))
    assert (answer.key, answer.severity) == (Key.FAILOVER_NOT_READY, Severity.WARNING)


def test_a_standby_without_a_copy() -> None:
    sample = with_postgres(with_server(HEALTHY, in_recovery=True), slots=(), senders=())
    assert verdict(sample).key is Key.FAILOVER_NOT_READY


def test_a_slot_without_failover_although_asked_for() -> None:
    asked = replace(HEALTHY, names=replace(HEALTHY.names, failover=True))
    assert verdict(asked).key is Key.FAILOVER_NOT_READY
    assert verdict(with_slot(asked, failover=True)).key is Key.HEALTHY
    assert verdict(with_server(asked, version=160015)).key is Key.HEALTHY


def test_a_slot_that_waits_for_a_standby_that_is_gone() -> None:
    sample = with_settings(with_slot(HEALTHY, failover=True), synchronized_standby_slots=("standby_1",))
    answer = verdict(sample)
    assert answer.key is Key.FAILOVER_NOT_READY
    assert "standby_1" in answer.cause


# --- the far side ------------------------------------------------------------------------------


def test_a_group_without_members_and_with_lag_has_stopped() -> None:
    answer = verdict(with_group(HEALTHY, end=5100, state="EMPTY", members=0))
    assert (answer.key, answer.severity) == (Key.GROUP_STOPPED, Severity.WARNING)
    assert "100 records" in answer.cause


def test_a_group_that_commits_nothing_has_stopped() -> None:
    steps = [with_group(later(HEALTHY, s), end=5000 + s) for s in range(0, 140, 10)]
    assert verdict(*steps).key is Key.GROUP_STOPPED
    assert verdict(*steps[:6]).key is Key.HEALTHY


def test_a_group_that_never_ran_is_judged_by_the_age_of_what_waits() -> None:
    quiet = [with_group(later(HEALTHY, s), state="DEAD", members=0) for s in range(0, 600, 30)]
    first = with_group(later(HEALTHY, 600), end=5001, state="DEAD", members=0)
    answer = verdict(*quiet, first)
    assert (answer.key, answer.severity) == (Key.GROUP_STOPPED, Severity.WARNING)
    waiting = [with_group(later(HEALTHY, s), end=5001, state="DEAD", members=0) for s in range(600, 930, 30)]
    assert verdict(*quiet, *waiting).severity is Severity.CRITICAL
    never = [with_group(later(HEALTHY, s), state="DEAD", members=0, committed={}) for s in range(0, 600, 30)]
    answer = verdict(*never)
    assert (answer.key, answer.severity) == (Key.GROUP_STOPPED, Severity.WARNING)
    assert "never" in answer.cause


def test_a_group_is_not_behind_on_topics_it_does_not_read() -> None:
    other = replace(
        with_group(HEALTHY), kafka=replace(KAFKA, ends={**KAFKA.ends, ("outbox.event.x", 0): 900})
    )
    assert verdict(other).key is Key.HEALTHY


def test_a_group_without_members_and_without_lag_is_no_news() -> None:
    assert verdict(with_group(HEALTHY, state="EMPTY", members=0)).key is Key.HEALTHY


def test_a_group_that_falls_behind_is_lagging() -> None:
    steps = [
        with_group(later(HEALTHY, s), end=7000 + 100 * s, committed={("outbox.event.order", 0): 5000 + s})
        for s in range(0, 60, 10)
    ]
    assert verdict(*steps).key is Key.GROUP_LAGGING


def test_a_group_that_catches_up_is_healthy() -> None:
    steps = [
        with_group(later(HEALTHY, s), end=9000, committed={("outbox.event.order", 0): 5000 + 50 * s})
        for s in range(0, 60, 10)
    ]
    assert verdict(*steps).key is Key.HEALTHY


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
    assert (answer.key, answer.severity) == (Key.CATCHING_UP, Severity.OK)
    assert answer.catch_up_seconds == pytest.approx(275 / 9, rel=0.05)
    assert answer.seconds_left is None


# --- the table ---------------------------------------------------------------------------------


def test_the_more_urgent_speaks_first_and_then_the_more_exact() -> None:
    tired = with_slot(with_connect(down(), state="STOPPED", tasks=()), catalog_xmin_age=250_000_000)
    answer = verdict(tired)
    assert answer.key is Key.CATALOG_XMIN_OLD  # critical
    assert [finding.key for finding in answer.findings] == [Key.CONNECTOR_STOPPED, Key.CONSUMER_DOWN]


def test_every_key_has_a_rule_or_is_the_absence_of_one() -> None:
    by_rule = {rule.__name__ for rule in RULES}
    assert {key.value for key in Key} - by_rule == {"healthy", "idle"}
    assert len(by_rule) == len(RULES)


def test_what_was_not_asked_is_not_missed() -> None:
    answer = verdict(replace(HEALTHY, connect=None, kafka=None))
    assert (answer.key, answer.unseen) == (Key.HEALTHY, ())


def test_missing_rights_are_named_and_do_not_spoil_the_answer() -> None:
    answer = verdict(with_server(HEALTHY, monitor=False, wal_dir_bytes=None))
    assert answer.key is Key.HEALTHY
    assert "GRANT pg_monitor" in answer.notes[0]


def test_everything_missing_still_gives_an_answer() -> None:
    answer = verdict(replace(HEALTHY, postgres=POSTGRES_GONE, connect=CONNECT_GONE, kafka=KAFKA_GONE))
    assert answer.key is Key.POSTGRES_UNREACHABLE
    assert len(answer.unseen) == 3
    assert KAFKA.groups
    assert postgres_of(HEALTHY).slots
