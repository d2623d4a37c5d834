"""The last answer as Prometheus metrics. A scrape reads memory; it never asks a server anything.

Every series that an alert rule uses is there from the first sample on and stays there: a metric that
vanishes with a lost slot would resolve its own alert.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from outbox_pipeline.watch.facts import Facts
from outbox_pipeline.watch.one_shot import Assessment
from outbox_pipeline.watch.verdict import End, VerdictKey, rank

SOURCES = ("postgres", "connect", "kafka")
BOUNDS = ("earliest", "expected")


@dataclass(frozen=True, slots=True)
class WatchCounts:
    """Counts of what the watch process itself has done."""

    pipeline: str = ""
    samples: int = 0
    sample_seconds: float = 0.0
    changes: int = 0
    ticks: int = 0
    failed_ticks: int = 0
    tidied: int = 0
    failed_tidies: int = 0
    failed_tidies_in_a_row: int = 0
    tidied_at: float | None = None  # epoch seconds


def exposition(answer: Assessment | None, counts: WatchCounts) -> bytes:
    """Write the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_AssessmentCollector(answer, counts))
    return generate_latest(registry)


class _AssessmentCollector(Collector):
    """Gives the metrics of one assessment to a Prometheus registry."""

    def __init__(self, answer: Assessment | None, counts: WatchCounts) -> None:
        self._answer, self._counts = answer, counts

    def collect(self) -> Iterator[Metric]:
        yield from _watch(self._counts)
        if self._answer is not None:
            yield from _verdict(self._answer)
            yield from _time_left(self._answer.facts)
            yield from _slot(self._answer.facts)
            yield from _outbox(self._answer.facts)
            yield from _connector(self._answer.facts)
            yield from _kafka(self._answer.facts)


Number: TypeAlias = float | None
PIPELINE = ("pipeline",)


def _gauges(pipeline: str, *gauges: tuple[str, str, Number]) -> Iterator[Metric]:
    """Make gauges of one series each; a value of None is left out."""
    for name, text, value in gauges:
        if value is not None:
            family = GaugeMetricFamily(name, text, labels=PIPELINE)
            family.add_metric([pipeline], value)
            yield family


def _watch(counts: WatchCounts) -> Iterator[Metric]:
    for name, text, count in (
        ("samples", "Samples taken.", counts.samples),
        ("verdict_changes", "Changes of verdict.", counts.changes),
        ("ticks", "Ticks sent into the log.", counts.ticks),
        ("failed_ticks", "Ticks not sent.", counts.failed_ticks),
        ("tidies", "Successful maintenance runs of the outbox.", counts.tidied),
        ("failed_tidies", "Failed maintenance runs of the outbox; see the log.", counts.failed_tidies),
    ):
        family = CounterMetricFamily(f"outbox_watch_{name}", text, labels=PIPELINE)
        family.add_metric([counts.pipeline], count)
        yield family
    yield from _gauges(
        counts.pipeline,
        (
            "outbox_watch_failed_tidies_in_a_row",
            "Failed maintenance runs since the last success.",
            float(counts.failed_tidies_in_a_row),
        ),
        (
            "outbox_watch_last_tidy_timestamp_seconds",
            "When the last maintenance run succeeded; 0: none yet.",
            counts.tidied_at or 0.0,
        ),
        ("outbox_watch_sample_duration_seconds", "How long the last sample took.", counts.sample_seconds),
    )


def _verdict(answer: Assessment) -> Iterator[Metric]:
    pipeline, verdict = answer.facts.names.pipeline, answer.verdict
    chosen = GaugeMetricFamily("outbox_verdict", "1 for the current verdict.", labels=("pipeline", "key"))
    found = GaugeMetricFamily(
        "outbox_finding",
        "Severity of each finding: 0 absent or fine, 1 warning, 2 critical.",
        labels=("pipeline", "key"),
    )
    ranks = {finding.key: rank(finding.severity) for finding in verdict.findings}
    ranks[verdict.key] = rank(verdict.severity)
    for key in VerdictKey:
        chosen.add_metric([pipeline, key.value], float(key is verdict.key))
        found.add_metric([pipeline, key.value], float(ranks.get(key, 0)))
    yield chosen
    yield found
    yield from _gauges(
        pipeline,
        ("outbox_severity", "0 fine, 1 warning, 2 critical.", float(rank(verdict.severity))),
        ("outbox_last_sample_timestamp_seconds", "When the last sample was taken.", answer.facts.sample.at),
    )
    up = GaugeMetricFamily(
        "outbox_source_up", "1 if the server could be sampled.", labels=("pipeline", "source")
    )
    unseen = {source.source for source in verdict.unseen}
    for source in SOURCES:
        up.add_metric([pipeline, source], float(source not in unseen))
    yield up


def _time_left(facts: Facts) -> Iterator[Metric]:
    """While WAL piles up: seconds until each end; +Inf while none is in sight."""
    left = GaugeMetricFamily(
        "outbox_time_left_seconds",
        "Time until events may be lost at the present rate.",
        labels=("pipeline", "bound"),
    )
    reserve = GaugeMetricFamily(
        "outbox_reserve_seconds",
        "Time until each end if consumption stopped now.",
        labels=("pipeline", "end", "bound"),
    )
    pipeline = facts.names.pipeline
    by_end = {found.end: found for found in reversed(facts.reserve)}
    for bound in BOUNDS:
        value = getattr(facts.left, bound) if facts.left else None
        left.add_metric([pipeline, bound], math.inf if value is None else value)
        for end in End:
            value = getattr(by_end[end], bound) if end in by_end else None
            reserve.add_metric([pipeline, end.value, bound], math.inf if value is None else value)
    yield left
    yield reserve


def _slot(facts: Facts) -> Iterator[Metric]:
    pipeline, postgres, slot = facts.names.pipeline, facts.postgres, facts.slot
    if postgres is None:
        return
    kept = slot if facts.retained is not None else None
    held = slot if slot is not None and not slot.lost else None
    cap = postgres.server.settings.slot_cap_bytes
    yield from _gauges(
        pipeline,
        ("outbox_slot_present", "1 if the slot exists.", float(slot is not None)),
        ("outbox_slot_lost", "1 if the slot is invalidated.", float(slot is not None and slot.lost)),
        ("outbox_slot_active", "1 if a process uses the slot.", float(slot is not None and slot.active)),
        ("outbox_slot_retained_bytes", "WAL the slot keeps.", facts.retained),
        ("outbox_slot_unconfirmed_bytes", "WAL that is not confirmed.", facts.unconfirmed),
        (
            "outbox_slot_safe_wal_bytes",
            "safe_wal_size: WAL that may be written until the slot may be lost.",
            kept.safe_wal_bytes if kept else None,
        ),
        ("outbox_slot_standing_seconds", "Time since confirmed_flush_lsn moved.", facts.confirmed_still),
        (
            "outbox_slot_catalog_xmin_age",
            "Age of catalog_xmin in transactions.",
            held.catalog_xmin_age if held else None,
        ),
        ("outbox_slot_cap_bytes", "max_slot_wal_keep_size; -1: none.", -1.0 if cap is None else cap),
        ("outbox_wal_directory_bytes", "Size of pg_wal.", postgres.server.wal_dir_bytes),
    )
    wal = CounterMetricFamily("outbox_wal_written_bytes", "WAL ever written.", labels=PIPELINE)
    wal.add_metric([pipeline], postgres.server.wal_position)
    yield wal


def _outbox(facts: Facts) -> Iterator[Metric]:
    pipeline, postgres = facts.names.pipeline, facts.postgres
    outbox = postgres.outbox if postgres else None
    if outbox is None:
        return
    rows = CounterMetricFamily(
        "outbox_rows_inserted", "Rows inserted into the outbox, rolled back ones included.", labels=PIPELINE
    )
    rows.add_metric([pipeline], outbox.inserted)
    yield rows
    yield from _gauges(
        pipeline,
        ("outbox_dead_rows", "Dead rows in the outbox.", outbox.dead),
        ("outbox_table_bytes", "Size of the outbox table.", outbox.bytes),
        ("outbox_oldest_event_seconds", "Age of the oldest row.", outbox.oldest_seconds),
    )


def _connector(facts: Facts) -> Iterator[Metric]:
    connect = facts.connect
    tasks = [task.state for task in connect.tasks] if connect else []
    running = float(connect.state == "RUNNING" and tasks == ["RUNNING"]) if connect else None
    yield from _gauges(
        facts.names.pipeline,
        ("outbox_connector_running", "1 if connector and task are RUNNING.", running),
        (
            "outbox_commit_to_kafka_seconds",
            "Latency of the last tick from commit to Kafka.",
            facts.sample.canary_seconds,
        ),
    )


def _kafka(facts: Facts) -> Iterator[Metric]:
    pipeline, kafka = facts.names.pipeline, facts.kafka
    if kafka is None:
        return
    ends: dict[str, int] = {}
    for (topic, _), end in kafka.ends.items():
        ends[topic] = ends.get(topic, 0) + end
    records = CounterMetricFamily(
        "outbox_topic_records", "Records ever written.", labels=("pipeline", "topic")
    )
    for topic, end in ends.items():
        records.add_metric([pipeline, topic], end)
    yield records
    lag = GaugeMetricFamily(
        "outbox_group_lag_records", "Records that the group has not read.", labels=("pipeline", "group")
    )
    age = GaugeMetricFamily(
        "outbox_group_lag_seconds",
        "Age of the oldest record that the group has not read.",
        labels=("pipeline", "group"),
    )
    members = GaugeMetricFamily("outbox_group_members", "Members of the group.", labels=("pipeline", "group"))
    for group in facts.groups:
        lag.add_metric([pipeline, group.group.name], group.lag)
        members.add_metric([pipeline, group.group.name], group.group.members)
        if group.lag_seconds is not None:
            age.add_metric([pipeline, group.group.name], group.lag_seconds)
    yield lag
    yield age
    yield members
