"""Verdicts on what flows and what stands still: frozen, looping, not acking, idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outbox_connectors.findings import Severity
from outbox_pipeline.watch.sample import ConnectSample, TaskSample
from outbox_pipeline.watch.verdict import VerdictKey
from watch_samples import (
    CONNECT_GONE,
    HEALTHY,
    KAFKA_GONE,
    MIB,
    NOW,
    WAL,
    down,
    growing,
    later,
    outranked,
    verdict,
    with_connect,
    with_outbox,
    with_postgres,
    with_sender,
    with_settings,
    with_slot,
)

# --- too large ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trace",
    [
        "RecordTooLargeException: The message is 1600123 bytes when serialized which is larger than 1048576",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_a_task_that_fails_over_something_too_large_is_named(trace: str) -> None:
    assert isinstance(HEALTHY.connect, ConnectSample)
    failed = replace(HEALTHY.connect, tasks=(TaskSample(0, "FAILED", trace),))
    answer = verdict(replace(HEALTHY, connect=failed))
    assert (answer.key, answer.severity) == (VerdictKey.MESSAGE_TOO_LARGE, Severity.CRITICAL)
    assert answer.next_step.startswith("outboxctl recover")
    assert VerdictKey.TASK_FAILED in outranked(answer)


# --- frozen, looping, not acking ---------------------------------------------------------------


def test_a_silent_consumer_is_frozen_and_not_a_dead_sink() -> None:
    frozen = [
        with_outbox(later(HEALTHY, s, wal=s * MIB, reply=False), inserted=5000 + s) for s in range(0, 45, 5)
    ]
    answer = verdict(*(with_connect(s, offset_lsn=WAL - 1000) for s in frozen))
    assert (answer.key, answer.severity) == (VerdictKey.CONSUMER_FROZEN, Severity.WARNING)
    assert VerdictKey.SINK_NOT_ACKING not in outranked(answer)


def test_a_frozen_consumer_explains_that_connect_does_not_answer() -> None:
    answer = verdict(with_sender(replace(HEALTHY, connect=CONNECT_GONE), reply_at=NOW - 45))
    assert answer.key is VerdictKey.CONSUMER_FROZEN
    assert VerdictKey.CONNECT_UNREACHABLE in outranked(answer)


def test_a_client_whose_clock_is_wrong_is_not_frozen() -> None:
    # It answers every 5 s, but its clock is 50 s behind the server's.
    skewed = [with_sender(later(HEALTHY, s), reply_at=NOW - 50 + s) for s in range(0, 30, 5)]
    assert verdict(*skewed).key is VerdictKey.HEALTHY
    # An age that wal_sender_timeout would not have allowed can only be the clocks.
    assert verdict(with_sender(HEALTHY, reply_at=NOW - 500)).key is VerdictKey.HEALTHY
    assert verdict(with_sender(HEALTHY, reply_at=NOW + 500)).key is VerdictKey.HEALTHY


def test_a_long_wal_sender_timeout_makes_silence_normal() -> None:
    slow = with_settings(HEALTHY, wal_sender_timeout=300.0)
    assert verdict(with_sender(slow, reply_at=NOW - 100)).key is VerdictKey.HEALTHY
    assert verdict(with_sender(slow, reply_at=NOW - 200)).key is VerdictKey.CONSUMER_FROZEN


def test_spilling_again_and_again_is_a_decode_loop() -> None:
    rounds = [
        with_sender(
            with_slot(later(HEALTHY, 20 * n), spill_bytes=n * 50 * MIB, active_pid=100 + n), pid=100 + n
        )
        for n in range(4)
    ]
    answer = verdict(*rounds)
    assert answer.key is VerdictKey.DECODE_LOOP
    assert "150 MB" in answer.cause


def test_a_loop_outranks_the_gap_between_two_rounds() -> None:
    rounds = [with_slot(down(later(HEALTHY, 20 * n)), spill_bytes=n * 50 * MIB) for n in range(4)]
    answer = verdict(*rounds)
    assert answer.key is VerdictKey.DECODE_LOOP
    assert VerdictKey.CONSUMER_DOWN in outranked(answer)


def test_one_large_transaction_spills_in_one_session_and_is_no_loop() -> None:
    spills = [with_slot(later(HEALTHY, 20 * n), spill_bytes=n * 50 * MIB) for n in range(4)]
    assert verdict(*spills).key is VerdictKey.HEALTHY


def test_rows_without_acknowledgement_are_a_dead_sink() -> None:
    answer = verdict(*growing(100, flush_lag=100.0, reply_at=None))
    assert (answer.key, answer.severity) == (VerdictKey.SINK_NOT_ACKING, Severity.WARNING)
    assert "rows written since" in answer.cause


def test_a_dead_sink_becomes_critical_with_time() -> None:
    assert verdict(*growing(330)).severity is Severity.CRITICAL


def test_a_short_pause_is_no_dead_sink() -> None:
    assert verdict(*growing(60)).key is not VerdictKey.SINK_NOT_ACKING


def test_kafka_gone_makes_a_dead_sink_certain_at_once() -> None:
    answer = verdict(*(replace(s, kafka=KAFKA_GONE) for s in growing(20)))
    assert (answer.key, answer.severity) == (VerdictKey.SINK_NOT_ACKING, Severity.WARNING)
    assert "connection refused" in answer.cause
    assert VerdictKey.KAFKA_UNREACHABLE in outranked(answer)


def test_kafka_gone_only_for_us_is_not_a_dead_sink() -> None:
    flowing = [with_slot(s, confirmed_lsn=WAL + n * MIB * 10 - 1000) for n, s in enumerate(growing(40))]
    answer = verdict(*(replace(with_connect(s, offset_lsn=None), kafka=KAFKA_GONE) for s in flowing))
    assert answer.key is VerdictKey.KAFKA_UNREACHABLE


def test_kafka_gone_on_a_quiet_pipeline_is_kafka_unreachable() -> None:
    answer = verdict(replace(HEALTHY, kafka=KAFKA_GONE))
    assert (answer.key, answer.severity) == (VerdictKey.KAFKA_UNREACHABLE, Severity.WARNING)


def test_ticks_without_acknowledgement_are_a_dead_sink_even_without_events() -> None:
    answer = verdict(*(with_postgres(s, tickers=1) for s in growing(100, rows=0)))
    assert answer.key is VerdictKey.SINK_NOT_ACKING


def test_an_offset_that_moves_is_a_sink_that_takes_events() -> None:
    # Debezium confirms to the slot with the next record only; the stored offset is the better witness.
    steps = growing(200)
    moved = [with_connect(s, offset_lsn=WAL - 1000 + 20_000 * n) for n, s in enumerate(steps)]
    assert verdict(*moved).key is not VerdictKey.SINK_NOT_ACKING


def test_an_offset_that_moved_once_and_stands_since_is_a_dead_sink() -> None:
    steps = growing(200)
    once = [with_connect(s, offset_lsn=WAL - 1000 + (20_000 if n > 1 else 0)) for n, s in enumerate(steps)]
    assert verdict(*once).key is VerdictKey.SINK_NOT_ACKING


def test_a_row_after_a_long_quiet_time_has_not_waited_for_that_time() -> None:
    quiet = [later(HEALTHY, second) for second in range(0, 700, 10)]
    row = with_outbox(later(HEALTHY, 705, wal=400), inserted=5001)
    assert verdict(*quiet, row).key is VerdictKey.HEALTHY


def test_a_row_that_is_counted_after_it_was_confirmed_is_not_waiting() -> None:
    """Statistics come up to a second late: the position has already moved past the row."""
    before = with_slot(HEALTHY, confirmed_lsn=WAL - 5000, restart_lsn=WAL - 6000)
    counted = [with_outbox(later(HEALTHY, s, wal=s), inserted=5001) for s in range(6, 200, 5)]
    assert verdict(before, later(HEALTHY, 5), *counted).key is VerdictKey.HEALTHY


def test_one_look_is_enough_where_the_server_knows_how_long_it_stands() -> None:
    first, second = growing(10, flush_lag=150.0)
    assert verdict(first, second).key is VerdictKey.SINK_NOT_ACKING


def test_a_consumer_that_just_came_back_has_not_waited_since_it_went() -> None:
    gone = [with_outbox(down(later(HEALTHY, s, wal=s * 100)), inserted=5000 + s) for s in range(0, 200, 10)]
    back = [with_outbox(later(HEALTHY, s, wal=s * 100), inserted=5000 + s) for s in range(200, 230, 10)]
    assert verdict(*gone, *back).key is not VerdictKey.SINK_NOT_ACKING


def test_kafka_gone_explains_that_connect_and_the_slot_are_gone_too() -> None:
    """A worker keeps its state in Kafka: without it, REST hangs and the task ends (seen on 4.3.1)."""
    answer = verdict(replace(down(), connect=CONNECT_GONE, kafka=KAFKA_GONE))
    assert answer.key is VerdictKey.KAFKA_UNREACHABLE
    assert outranked(answer) == {VerdictKey.CONNECT_UNREACHABLE, VerdictKey.CONSUMER_DOWN}


def test_a_ticker_that_just_came_has_not_waited_since_the_last_watch() -> None:
    before = [later(HEALTHY, s, wal=s) for s in (0, 5)]
    now = [with_postgres(later(HEALTHY, s, wal=s), tickers=1) for s in (200, 202, 204)]
    assert verdict(*before, *now).key is VerdictKey.HEALTHY


# --- idle and stuck look alike -----------------------------------------------------------------


def test_foreign_wal_and_a_quiet_outbox_is_a_missing_heartbeat() -> None:
    answer = verdict(*growing(100, rows=0, flush_lag=100.0))
    assert (answer.key, answer.severity) == (VerdictKey.HEARTBEAT_MISSING, Severity.WARNING)
    assert "outboxctl watch" in answer.cause + answer.next_step


def test_wal_of_another_database_is_recognised_sooner() -> None:
    # Nothing is sent, so there is no lag and no transaction is counted.
    answer = verdict(*growing(40, rows=0, flush_lag=None))
    assert answer.key is VerdictKey.HEARTBEAT_MISSING


def test_little_wal_of_an_idle_server_is_no_missing_heartbeat() -> None:
    steps = [later(HEALTHY, second, wal=second * 100) for second in range(0, 200, 20)]
    assert verdict(*steps).key is VerdictKey.HEALTHY


def test_a_confirmed_position_that_moves_is_no_missing_heartbeat() -> None:
    steps = [with_slot(s, confirmed_lsn=WAL + n * 1000) for n, s in enumerate(growing(100, rows=0))]
    assert verdict(*(with_connect(s, offset_lsn=None) for s in steps)).key is not VerdictKey.HEARTBEAT_MISSING
