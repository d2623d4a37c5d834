"""What users rely on: names in their code, scripts, alerts and dashboards. Lists only ever grow.

Each list is written out here on purpose. A test that fails means that a user's program, alert or dashboard
would stop working: restore the name. Add to a list when something new is published.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import outbox_consumers
from outbox_connectors import loading
from outbox_connectors.errors import ExitCode
from outbox_consumers.durable.counters import WorkCounters
from outbox_consumers.durable.health import MonitoredWorker
from outbox_consumers.inbox import job_tables, schema
from outbox_consumers.processes.counters import ConsumerCounters
from outbox_consumers.processes.health import MonitoredConsumer, ProcessState
from outbox_pipeline import outbox
from outbox_pipeline.operations.audit_report import AuditReport
from outbox_pipeline.relay.names import relay_names
from outbox_pipeline.servers.plan import ObjectPlan, Plan, State
from outbox_pipeline.watch import document
from outbox_pipeline.watch.assess import verdict_of
from outbox_pipeline.watch.facts import facts_of
from outbox_pipeline.watch.metrics import WatchCounts, exposition
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.thresholds import Thresholds
from outbox_pipeline.watch.verdict import VerdictKey
from watch_samples import HEALTHY, MIB, history_of, later

ROOT = Path(__file__).parents[2]
DEFINITION = loading.load(ROOT / "connectors" / "outbox.yaml", {})

CONSUMER_NAMES = [
    "Consumer",
    "DeadLetterLimit",
    "DurableInbox",
    "Event",
    "Job",
    "Reject",
    "RetryStrategy",
    "Skip",
    "claim",
    "claim_async",
]
OUTBOX_NAMES = [
    "Event",
    "EventError",
    "JsonText",
    "add",
    "add_async",
    "add_many",
    "add_many_async",
    "event",
    "new_id",
    "statement",
]
EXIT_CODES = {
    "OK": 0,
    "FAILED": 1,
    "USAGE": 2,
    "DIFFERENT": 3,
    "WARNING": 4,
    "CRITICAL": 5,
    "UNREACHABLE": 6,
    "REFUSED": 7,
}
VERDICT_KEYS = {
    "catalog_xmin_old",
    "catching_up",
    "connect_unreachable",
    "connector_paused",
    "connector_stopped",
    "consumer_down",
    "consumer_frozen",
    "decode_loop",
    "failover_not_ready",
    "group_lagging",
    "group_stopped",
    "healthy",
    "heartbeat_missing",
    "idle",
    "kafka_unreachable",
    "message_too_large",
    "offset_ahead_of_slot",
    "offset_behind_slot",
    "offset_unreadable",
    "outbox_not_vacuumable",
    "pinned_by_transaction",
    "postgres_unreachable",
    "publication_missing",
    "rescue_window",
    "sink_not_acking",
    "slot_foreign",
    "slot_lost",
    "slot_missing",
    "slot_taken",
    "slots_nearly_full",
    "table_missing",
    "table_not_published",
    "task_failed",
    "unexplained_wal",
    "wal_unbounded",
}
WATCH_METRICS = {
    "outbox_commit_to_kafka_seconds",
    "outbox_connector_running",
    "outbox_dead_rows",
    "outbox_finding",
    "outbox_group_lag_records",
    "outbox_group_lag_seconds",
    "outbox_group_members",
    "outbox_last_sample_timestamp_seconds",
    "outbox_oldest_event_seconds",
    "outbox_reserve_seconds",
    "outbox_rows_inserted_total",
    "outbox_severity",
    "outbox_slot_active",
    "outbox_slot_cap_bytes",
    "outbox_slot_catalog_xmin_age",
    "outbox_slot_lost",
    "outbox_slot_present",
    "outbox_slot_retained_bytes",
    "outbox_slot_safe_wal_bytes",
    "outbox_slot_standing_seconds",
    "outbox_slot_unconfirmed_bytes",
    "outbox_source_up",
    "outbox_table_bytes",
    "outbox_time_left_seconds",
    "outbox_topic_records_total",
    "outbox_verdict",
    "outbox_wal_directory_bytes",
    "outbox_wal_written_bytes_total",
    "outbox_watch_failed_ticks_total",
    "outbox_watch_failed_tidies_in_a_row",
    "outbox_watch_failed_tidies_total",
    "outbox_watch_last_tidy_timestamp_seconds",
    "outbox_watch_sample_duration_seconds",
    "outbox_watch_samples_total",
    "outbox_watch_ticks_total",
    "outbox_watch_tidies_total",
    "outbox_watch_verdict_changes_total",
}
CONSUMER_METRICS = {
    "outbox_consumer_batches_total",
    "outbox_consumer_commit_errors_total",
    "outbox_consumer_events_total",
    "outbox_consumer_evictions_total",
    "outbox_consumer_falling_ids_total",
    "outbox_consumer_fenced_total",
    "outbox_consumer_healthy",
    "outbox_consumer_held_records",
    "outbox_consumer_lag",
    "outbox_consumer_revoked_total",
    "outbox_consumer_seconds_since_poll",
    "outbox_consumer_singles_total",
    "outbox_consumer_stalls_total",
    "outbox_consumer_without_id_total",
}
CONSUMER_OUTCOMES = {
    "dead_letters",
    "duplicates",
    "failures",
    "parked",
    "processed",
    "rejected",
    "skipped",
    "stale",
    "transient",
    "unparked",
    "untyped",
}
DURABLE_METRICS = {
    "outbox_durable_jobs_total",
    "outbox_durable_worker_healthy",
    "outbox_durable_worker_lease_seconds_left",
    "outbox_durable_worker_seconds_at_work",
}
DURABLE_OUTCOMES = {
    "dead",
    "done",
    "failed",
    "fenced",
    "given_back",
    "rescued",
    "taken",
    "timeouts",
    "transient",
    "unknown",
}
PLAN_FIELDS = {"objects", "differences"}
PLANNED_OBJECT_FIELDS = {
    "changes",
    "kind",
    "name",
    "remedy",
    "state",
    "statement",
    "unseen",
    "warnings",
    "why",
}
PLAN_STATES = {"present", "missing", "different", "blocked"}
STATUS_FIELDS = {
    "at",
    "canary_seconds",
    "catch_up_seconds",
    "cause",
    "connector",
    "evidence",
    "findings",
    "groups",
    "next_step",
    "notes",
    "outbox",
    "pipeline",
    "server",
    "severity",
    "slot",
    "tick",
    "topics",
    "unseen",
    "verdict",
}
AUDIT_FIELDS = {
    "applied",
    "delivered",
    "duplicated",
    "missing",
    "missing_count",
    "unapplied",
    "unapplied_count",
    "unexpected",
    "written",
}
INBOX_TABLES = {
    "inbox",
    "inbox_attempt",
    "inbox_dead_letter",
    "inbox_default",
    "inbox_job",
    "inbox_journal",
    "inbox_member",
    "inbox_p20260102",
    "inbox_parked",
    "inbox_worker",
}
RELAY_TABLES = ["outbox_relay", "outbox_relay_batch", "outbox_dead_letter", "outbox_history"]
OTHER_OUTBOX_SUFFIXES = {"_default", "_replay", "_road"}


def series(name_and_labels: str) -> str:
    return name_and_labels.partition("{")[0]


def watched() -> Assessment:
    """A healthy pipeline seen for a minute, every source present."""
    sample = replace(HEALTHY, disk_free_bytes=10**12, canary_seconds=0.025)
    *past, present = (later(sample, second, wal=second * MIB) for second in range(0, 60, 10))
    facts = facts_of(history_of([*past, present]), present, Thresholds())
    return Assessment(facts, verdict_of(facts))


def monitored_consumer() -> MonitoredConsumer:
    state = ProcessState()
    state.lag["outbox.event.order", 0] = 1
    return MonitoredConsumer("billing", ConsumerCounters(), state, 1.0, lambda: 0.0)


def monitored_worker() -> MonitoredWorker:
    return MonitoredWorker("billing", WorkCounters(), lambda: None)


def metrics(shown: MonitoredConsumer | MonitoredWorker) -> set[str]:
    return {sample.name for metric in shown.collect() for sample in metric.samples}


def outcomes(shown: MonitoredConsumer | MonitoredWorker) -> set[str]:
    samples = [sample for metric in shown.collect() for sample in metric.samples]
    return {sample.labels["outcome"] for sample in samples if "outcome" in sample.labels}


def test_public_names_of_the_consumers() -> None:
    assert sorted(outbox_consumers.__all__) == CONSUMER_NAMES
    assert [name for name in CONSUMER_NAMES if not hasattr(outbox_consumers, name)] == []


def test_public_names_of_the_outbox() -> None:
    assert sorted(outbox.__all__) == OUTBOX_NAMES
    assert [name for name in OUTBOX_NAMES if not hasattr(outbox, name)] == []


def test_exit_codes() -> None:
    assert {code.name: int(code) for code in ExitCode} == EXIT_CODES


def test_verdict_keys() -> None:
    assert {key.value for key in VerdictKey} == VERDICT_KEYS


def test_metrics_of_the_watch() -> None:
    text = exposition(watched(), WatchCounts()).decode()
    assert {series(line) for line in text.splitlines() if not line.startswith("#")} == WATCH_METRICS


def test_metrics_of_a_consumer() -> None:
    assert metrics(monitored_consumer()) == CONSUMER_METRICS
    assert outcomes(monitored_consumer()) == CONSUMER_OUTCOMES


def test_metrics_of_a_durable_inbox() -> None:
    assert metrics(monitored_worker()) == DURABLE_METRICS
    assert outcomes(monitored_worker()) == DURABLE_OUTCOMES


def test_json_of_plan() -> None:
    plan = Plan((ObjectPlan("table", "public.outbox", State.PRESENT),)).document()
    assert set(plan) == PLAN_FIELDS
    assert set(plan["objects"][0]) == PLANNED_OBJECT_FIELDS
    assert {state.value for state in State} == PLAN_STATES


def test_json_of_status() -> None:
    answer = watched()
    assert set(document.status(answer.facts, answer.verdict)) == STATUS_FIELDS


def test_json_of_audit() -> None:
    assert set(AuditReport().document()) == AUDIT_FIELDS


def test_tables_of_the_inbox() -> None:
    steps = (*schema.steps("inbox", today=date(2026, 1, 2)), *job_tables.steps("inbox"))
    tables = {step.name for step in steps if step.kind in ("table", "partition")}
    of_other_days = {name for name in tables if re.fullmatch(r"inbox_p\d{8}", name)} - {"inbox_p20260102"}
    assert tables - of_other_days == INBOX_TABLES


def test_tables_beside_the_outbox() -> None:
    names = relay_names(DEFINITION)
    assert [names.settings, names.batch, names.dead_letter, names.history] == RELAY_TABLES
    strings = {
        node.value
        for path in (ROOT / "pipeline" / "outbox_pipeline").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert OTHER_OUTBOX_SUFFIXES - strings == set()


def test_topics() -> None:
    names = relay_names(DEFINITION)
    assert DEFINITION.kafka.topic_of("order") == "outbox.event.order"
    assert DEFINITION.message_topic == "shop.message"
    assert names.progress_topic == "shop.relay"
    assert names.transactional_id(3) == "shop.relay.3"


def test_logical_messages() -> None:
    assert (DEFINITION.heartbeat_prefix, DEFINITION.canary_prefix) == ("shop.heartbeat", "shop.canary")
