"""Verdicts on the slot, its offset and who consumes it: each fires on its evidence and not without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outbox_connectors.findings import Severity
from outbox_pipeline.watch.sample import ConnectSample, Publication, TaskSample
from outbox_pipeline.watch.verdict import VerdictKey
from watch_samples import (
    CONNECT_GONE,
    HEALTHY,
    MIB,
    WAL,
    down,
    later,
    outranked,
    verdict,
    with_connect,
    with_outbox,
    with_postgres,
    with_sender,
    with_server,
    with_slot,
)

PGOUTPUT = {"plugin.name": "pgoutput"}

# --- nothing wrong -----------------------------------------------------------------------------


def test_a_healthy_pipeline_is_healthy() -> None:
    answer = verdict(with_outbox(HEALTHY, inserted=4900), later(HEALTHY, 10))
    assert (answer.key, answer.severity, answer.findings, answer.unseen) == (
        VerdictKey.HEALTHY,
        Severity.OK,
        (),
        (),
    )


def test_one_sample_is_enough_for_healthy() -> None:
    assert verdict(HEALTHY).key is VerdictKey.HEALTHY


def test_nothing_written_for_long_is_idle() -> None:
    answer = verdict(HEALTHY, later(HEALTHY, 301))
    assert (answer.key, answer.severity) == (VerdictKey.IDLE, Severity.OK)


def test_the_sawtooth_of_a_slow_offset_flush_stays_healthy() -> None:
    # Connect flushes offsets every 60 s by default, so the position moves in steps of a minute.
    steps = [with_outbox(later(HEALTHY, s, wal=s * 10_000), inserted=5000 + s) for s in range(0, 60, 5)]
    assert verdict(*steps).key is VerdictKey.HEALTHY


# --- the slot ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["wal_removed", "rows_removed", "wal_level_insufficient", "idle_timeout"])
def test_a_slot_with_a_reason_is_lost(reason: str) -> None:
    answer = verdict(with_slot(down(), wal_status="lost", invalidation_reason=reason))
    assert (answer.key, answer.severity) == (VerdictKey.SLOT_LOST, Severity.CRITICAL)
    assert reason in answer.cause
    assert VerdictKey.CONSUMER_DOWN not in outranked(answer)  # that a lost slot has no consumer is no news


def test_a_slot_lost_before_17_has_its_reason_from_its_position() -> None:
    gone = with_slot(down(), wal_status="lost", restart_lsn=None, safe_wal_bytes=None, conflicting=True)
    assert "wal_removed" in verdict(gone).cause
    conflicting = with_slot(down(), wal_status="lost", conflicting=True)
    assert "rows_removed" in verdict(conflicting).cause


def test_an_idle_timeout_keeps_restart_lsn_and_retains_nothing() -> None:
    answer = verdict(with_slot(down(), wal_status="lost", invalidation_reason="idle_timeout", restart_lsn=5))
    assert answer.key is VerdictKey.SLOT_LOST
    assert answer.seconds_left is None


def test_a_missing_slot_outranks_a_failed_task() -> None:
    sample = with_connect(
        with_postgres(HEALTHY, slots=(), senders=()), tasks=(TaskSample(0, "FAILED", "M1"),)
    )
    answer = verdict(HEALTHY, later(sample, 5))
    assert (answer.key, answer.severity) == (VerdictKey.SLOT_MISSING, Severity.CRITICAL)
    assert "a moment ago" in answer.cause
    assert VerdictKey.TASK_FAILED in outranked(answer)


def test_unreserved_is_the_rescue_window() -> None:
    sample = with_slot(down(), wal_status="unreserved", safe_wal_bytes=-2 * MIB, restart_lsn=WAL - 300 * MIB)
    answer = verdict(sample)
    assert (answer.key, answer.severity) == (VerdictKey.RESCUE_WINDOW, Severity.CRITICAL)
    assert "600MB" in answer.next_step
    assert "pg_reload_conf" in answer.next_step
    assert VerdictKey.CONSUMER_DOWN in outranked(answer)


def test_extended_is_no_rescue_window() -> None:
    assert verdict(with_slot(HEALTHY, wal_status="extended")).key is VerdictKey.HEALTHY


@pytest.mark.parametrize(("version", "words"), [(180006, "without an error"), (170011, "again for ever")])
def test_a_missing_publication_is_critical_at_once(version: int, words: str) -> None:
    answer = verdict(with_server(with_postgres(HEALTHY, publication=None), version=version))
    assert (answer.key, answer.severity) == (VerdictKey.PUBLICATION_MISSING, Severity.CRITICAL)
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
    assert (answer.key, answer.severity) == (VerdictKey.TABLE_NOT_PUBLISHED, Severity.CRITICAL)
    assert words in answer.cause
    assert "ALTER PUBLICATION" in answer.next_step


def test_a_missing_table_is_named() -> None:
    answer = verdict(with_postgres(HEALTHY, outbox=None, publication=Publication(True, False, False)))
    assert answer.key is VerdictKey.TABLE_MISSING


# --- slot and offset ---------------------------------------------------------------------------


def test_an_offset_beyond_the_log_means_an_older_server() -> None:
    restored = with_connect(HEALTHY, offset_lsn=WAL + 100 * MIB)
    answer = verdict(restored)
    assert (answer.key, answer.severity) == (VerdictKey.OFFSET_AHEAD_OF_SLOT, Severity.CRITICAL)


def test_an_offset_of_the_sample_before_beyond_the_log_is_enough() -> None:
    before = with_connect(HEALTHY, offset_lsn=WAL - 10)
    after = with_server(later(before, 5), wal_position=WAL - 20, timeline=2)
    assert verdict(before, with_slot(after, confirmed_lsn=WAL - 2000)).key is VerdictKey.OFFSET_AHEAD_OF_SLOT


def test_an_offset_stored_after_postgres_answered_is_no_alarm() -> None:
    assert verdict(HEALTHY, with_connect(later(HEALTHY, 3), offset_lsn=WAL + 5000)).key is VerdictKey.HEALTHY


def test_a_slot_made_anew_is_beyond_the_stored_offset() -> None:
    sample = with_slot(with_connect(HEALTHY, offset_lsn=WAL - 50_000), restart_lsn=WAL - 2000)
    answer = verdict(sample)
    assert (answer.key, answer.severity) == (VerdictKey.OFFSET_BEHIND_SLOT, Severity.CRITICAL)


def test_an_older_offset_restored_is_a_warning() -> None:
    before = with_slot(with_connect(HEALTHY, offset_lsn=WAL - 50_000), restart_lsn=WAL - 90_000)
    answer = verdict(before, later(before, 3))
    assert (answer.key, answer.severity) == (VerdictKey.OFFSET_BEHIND_SLOT, Severity.WARNING)


def test_a_position_confirmed_after_the_offset_was_read_is_no_alarm() -> None:
    now = with_slot(with_connect(later(HEALTHY, 3), offset_lsn=WAL - 1000), confirmed_lsn=WAL - 500)
    assert verdict(HEALTHY, now).key is VerdictKey.HEALTHY


# --- who consumes ------------------------------------------------------------------------------


def test_a_foreign_process_on_the_slot_is_named() -> None:
    sample = with_sender(HEALTHY, application="pg_recvlogical", user="postgres")
    failed = with_connect(sample, tasks=(TaskSample(0, "FAILED", "slot is active for PID 100"),))
    answer = verdict(failed)
    assert (answer.key, answer.severity) == (VerdictKey.SLOT_TAKEN, Severity.CRITICAL)
    assert "pg_recvlogical" in answer.cause
    assert "pg_terminate_backend(100)" in answer.next_step
    assert VerdictKey.TASK_FAILED in outranked(answer)


def test_a_foreign_connector_of_another_login_does_not_take_its_own_slot() -> None:
    theirs = with_connect(
        with_sender(HEALTHY, user="their_app"),
        config={**PGOUTPUT, "database.user": "their_app"},
    )
    assert verdict(theirs).key is VerdictKey.HEALTHY


def test_where_it_cannot_be_seen_whose_process_it_is_nothing_is_ended() -> None:
    hidden = with_connect(
        with_sender(HEALTHY, user="x"), config={**PGOUTPUT, "database.user": "${file:/s:user}"}
    )
    answer = verdict(hidden)
    assert answer.key is VerdictKey.HEALTHY
    assert "cannot be seen" in "".join(answer.notes)
    failed = verdict(with_connect(hidden, tasks=(TaskSample(0, "FAILED", "slot is active for PID 100"),)))
    taken = next(found for found in failed.findings if found.key is VerdictKey.SLOT_TAKEN)
    assert taken.severity is Severity.WARNING
    assert "terminate" not in taken.next_step + failed.next_step


def test_a_session_that_calls_the_sql_functions_takes_the_slot_too() -> None:
    assert (
        verdict(with_sender(HEALTHY, application="", backend_type="client backend")).key
        is VerdictKey.SLOT_TAKEN
    )


@pytest.mark.parametrize("application", ["Debezium Streaming", "Debezium General", "", None])
def test_our_connector_or_one_we_may_not_see_does_not_take_it(application: str | None) -> None:
    assert verdict(with_sender(HEALTHY, application=application)).key is VerdictKey.HEALTHY


def test_a_failed_task_hides_behind_a_running_connector() -> None:
    answer = verdict(with_connect(down(), tasks=(TaskSample(0, "FAILED", "FATAL: password authentication"),)))
    assert (answer.key, answer.severity) == (VerdictKey.TASK_FAILED, Severity.CRITICAL)
    assert "password authentication" in answer.cause
    assert VerdictKey.CONSUMER_DOWN in outranked(answer)


def test_a_failed_connector_without_tasks_counts_too() -> None:
    assert (
        verdict(with_connect(down(), state="FAILED", tasks=(), trace_line="boom")).key
        is VerdictKey.TASK_FAILED
    )


@pytest.mark.parametrize(
    ("state", "key"), [("STOPPED", VerdictKey.CONNECTOR_STOPPED), ("PAUSED", VerdictKey.CONNECTOR_PAUSED)]
)
def test_what_was_done_on_purpose_is_called_so(state: str, key: VerdictKey) -> None:
    sample = with_connect(HEALTHY if state == "PAUSED" else down(), state=state, tasks=())
    answer = verdict(sample)
    assert (answer.key, answer.severity, answer.next_step) == (
        key,
        Severity.WARNING,
        "outboxctl connectors resume",
    )


def test_connect_gone_and_slot_free_is_connect_unreachable() -> None:
    answer = verdict(replace(down(), connect=CONNECT_GONE))
    assert (answer.key, answer.severity) == (VerdictKey.CONNECT_UNREACHABLE, Severity.WARNING)
    assert VerdictKey.CONSUMER_DOWN in outranked(answer)
    assert answer.unseen == (CONNECT_GONE,)


def test_connect_gone_for_long_is_critical() -> None:
    gone = replace(down(), connect=CONNECT_GONE)
    assert verdict(*(later(gone, s) for s in range(0, 330, 30))).severity is Severity.CRITICAL


def test_connect_gone_while_the_slot_is_in_use_says_that_events_flow() -> None:
    answer = verdict(replace(HEALTHY, connect=CONNECT_GONE))
    assert answer.key is VerdictKey.CONNECT_UNREACHABLE
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
    assert (answer.key, answer.severity) == (VerdictKey.CONSUMER_DOWN, Severity.WARNING)
    assert words in answer.cause


def test_a_slot_free_for_long_is_critical() -> None:
    assert verdict(with_slot(down(), inactive_seconds=301.0)).severity is Severity.CRITICAL
