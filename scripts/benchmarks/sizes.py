"""How much each benchmark does: `--quick`, the default, and `--long`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Rounds and amounts of one run. A warm-up round, where there is one, is not counted in `rounds`."""

    latency_rounds: int
    latency_seconds: float
    backlog_rounds: int
    backlog_events: int
    consumer_rounds: int
    bulk_events: int
    single_events: int
    durable_rounds: int
    durable_jobs: int
    inbox_rounds: int
    inbox_rows: int
    relay_rounds: int
    relay_events: int
    relay_latency_seconds: float
    audit_rounds: int
    audit_events: int
    watch_rounds: int
    watch_samples: int  # 0: the memory of a long watch is not measured
    cli_rounds: int


QUICK = Size(
    latency_rounds=1,
    latency_seconds=5,
    backlog_rounds=1,
    backlog_events=30_000,
    consumer_rounds=2,
    bulk_events=60_000,
    single_events=8_000,
    durable_rounds=1,
    durable_jobs=20_000,
    inbox_rounds=3,
    inbox_rows=1_000_000,
    relay_rounds=1,
    relay_events=60_000,
    relay_latency_seconds=5,
    audit_rounds=1,
    audit_events=200_000,
    watch_rounds=3,
    watch_samples=0,
    cli_rounds=7,
)
DEFAULT = Size(
    latency_rounds=2,
    latency_seconds=6,
    backlog_rounds=2,
    backlog_events=60_000,
    consumer_rounds=3,
    bulk_events=120_000,
    single_events=20_000,
    durable_rounds=2,
    durable_jobs=30_000,
    inbox_rounds=5,
    inbox_rows=1_000_000,
    relay_rounds=2,
    relay_events=100_000,
    relay_latency_seconds=5,
    audit_rounds=2,
    audit_events=1_000_000,
    watch_rounds=5,
    watch_samples=0,
    cli_rounds=10,
)
LONG = Size(
    latency_rounds=2,
    latency_seconds=10,
    backlog_rounds=3,
    backlog_events=100_000,
    consumer_rounds=5,
    bulk_events=200_000,
    single_events=30_000,
    durable_rounds=3,
    durable_jobs=40_000,
    inbox_rounds=7,
    inbox_rows=10_000_000,
    relay_rounds=3,
    relay_events=200_000,
    relay_latency_seconds=10,
    audit_rounds=3,
    audit_events=1_000_000,
    watch_rounds=7,
    watch_samples=10_000,  # ten seconds apart, so that they fill every bucket of a day
    cli_rounds=20,
)
