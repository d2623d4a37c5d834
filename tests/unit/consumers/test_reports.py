"""What consumers elsewhere were reported to do wrong, and which tests show that ours does not.

Each line is one report, or several of the same kind, and where it can be read; behind it the tests that
reproduce it, as file::test. This file only makes sure that they are there.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SEARCHED = ("integration", "acceptance", "unit/consumers")

REPORTS: dict[str, tuple[str, ...]] = {
    "offsets committed before the work is done (FastStream #2610)": (
        "test_settings::test_refused_with_the_reason",
        "test_consumer_testing::test_a_kill_after_any_step_loses_and_repeats_nothing",
    ),
    "a failed message overtaken by the next one's offset (FastStream #2618, confluent-kafka-go #1179)": (
        "test_consumer::test_a_failing_event_is_retried_and_holds_up_only_its_partition",
        "test_consumer_failures::test_stop_ends_the_consumer_which_continues_there_when_restarted",
    ),
    "only the last message's partition committed (steveo #1054)": (
        "test_consumer::test_offsets_are_committed_behind_the_effects",
        "test_consumer_group::test_sigterm_finishes_the_current_transaction_and_commits_its_offsets",
    ),
    "double processing after a scale-up (Faust #502, kafka-pixy #62)": (
        "test_consumer_group::test_members_of_an_eager_group_that_join_and_leave_lose_and_repeat_nothing",
        "test_consumer_storm::test_a_storm_over_a_group_loses_repeats_and_reorders_nothing",
    ),
    "finished work thrown away on revoke (PostHog #80897)": (
        "test_consumer_group::test_offsets_are_committed_when_partitions_are_revoked",
    ),
    "a refused commit kills the consumer (Logprep #386, dotnet #1861)": (
        "test_source::test_an_offset_commit_that_kafka_refuses_is_counted_and_raises_nothing",
    ),
    "auto.offset.reset=latest skips what came before the assignment (confluent-kafka-python #1329)": (
        "test_settings::test_refused_with_the_reason",
        "test_settings::test_latest_is_allowed_as_an_argument",
    ),
    "stuck for ever after max.poll.interval.ms (confluent-kafka-python #629, #552)": (
        "test_consumer_group::test_a_handler_longer_than_the_poll_interval_costs_the_partition_but_no_event",
        "test_consumer_health::test_a_handler_that_does_not_come_back_makes_the_consumer_unhealthy",
    ),
    "an exception in a callback or signal handler skips messages (confluent-kafka-python #729, #150)": (
        "test_consumer_group::test_a_callback_that_raises_skips_nothing",
        "test_settings::test_callbacks_never_raise_into_the_client",
    ),
    "memory grows with the backlog (confluent-kafka-python #759)": ("test_settings::test_defaults",),
    "paused partitions stay mute after a rebalance (librdkafka #5111, reactor-kafka #432)": (
        "test_consumer_zombies::test_a_paused_partition_that_is_revoked_and_assigned_again_continues",
    ),
    "one duplicate freezes its partition or blames the wrong row (Wolverine #2639)": (
        "test_consumer::test_the_fast_claim_falls_back_when_a_duplicate_shows_up_and_recovers",
        "test_consumer::test_duplicates_across_batches_and_inside_one_are_skipped",
    ),
    "inbox and effect in two transactions (Wolverine #1677)": (
        "test_consumer_testing::test_a_kill_after_any_step_loses_and_repeats_nothing",
        "test_consumer_transactions::test_a_handler_cannot_end_the_transaction",
    ),
    "a second subscriber starves behind the first one's ids (MassTransit #3543)": (
        "test_consumer::test_two_consumers_of_one_database_each_handle_every_event",
    ),
    "a failed message remembered as handled (motorway #46)": (
        "test_inbox_claim::test_a_rolled_back_claim_can_be_claimed_again",
        "test_consumer_batches::test_a_batch_that_failed_is_yielded_again",
    ),
    "a stale batch goes on after a rebalance (kafkajs #1764, #1097)": (
        "test_consumer_storm::test_a_storm_over_a_group_loses_repeats_and_reorders_nothing",
        "test_consumer_transactions::test_a_frozen_zombie_is_ended_by_the_server_and_the_next_one_goes_on",
    ),
    "a poison payload loops for ever (aiokafka #744, confluent-kafka-python #1572)": (
        "test_consumer::test_a_payload_that_is_no_json_is_rejected_at_once",
        "test_consumer_deaths::test_an_event_that_crashes_the_process_becomes_a_dead_letter",
    ),
    "a dead letter lost while its offset is committed (agent-kernel #630, outboxx #110)": (
        "test_consumer_failures::test_a_copy_of_a_dead_letter_goes_to_its_topic_before_the_offset_is_stored",
    ),
    "deadlocks between batches (latitude #3463, basic-memory #1208)": (
        "test_inbox_claim::test_overlapping_batches_in_any_order_never_deadlock",
        "test_consumer_transactions::test_two_consumers_fed_the_same_events_in_opposite_order_never_deadlock",
        "test_consumer_transactions::test_a_deadlock_between_handlers_is_retried",
    ),
    "the inbox grows without end, or its clean-up blocks it (Eventuate #46, Wolverine #3116)": (
        "test_inbox_retention::test_maintenance_creates_future_days_and_drops_those_that_no_topic_can_deliver",
        "test_inbox_retention::test_maintenance_gives_way_to_a_busy_inbox",
    ),
    "a transaction held open while waiting for a retry (MassTransit #4299)": (
        "test_consumer_zombies::test_waiting_for_a_retry_holds_no_transaction",
    ),
    "records of aborted Kafka transactions handled (Faust #323, alpakka #1038)": (
        "test_consumer_group::test_records_of_an_aborted_transaction_are_not_handled",
    ),
    "a COMMIT that was a ROLLBACK (pg8000 #36, pgo #131)": (
        "test_consumer_transactions::test_a_swallowed_database_error_is_noticed_and_nothing_is_lost",
        "test_consumer_transactions::test_an_error_swallowed_in_pipeline_mode_is_noticed_too",
    ),
    "close() hangs when the broker is gone (confluent-kafka-python #1667)": (
        "test_consumer_storm::test_a_storm_over_a_group_loses_repeats_and_reorders_nothing",
    ),
}


@cache
def names_in(name: str) -> frozenset[str]:
    """Read the names of the tests in a file."""
    for folder in SEARCHED:
        path = TESTS / folder / f"{name}.py"
        if path.exists():
            tree = ast.parse(path.read_text())
            return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return frozenset()


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_has_its_tests(report: str) -> None:
    for reference in REPORTS[report]:
        name, _, test = reference.partition("::")
        assert test in names_in(name), reference
