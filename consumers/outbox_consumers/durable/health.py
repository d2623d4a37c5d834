"""What the HTTP port shows of one worker: whether it holds its lease, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outbox_consumers.durable.counters import WorkCounters
from outbox_consumers.durable.lease import LeaseRenewal


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """A worker is healthy while it holds its lease, which takes a database that answers."""

    consumer: str
    healthy: bool
    lease_seconds_left: float
    seconds_at_work: float  # of the job at hand


class MonitoredWorker:
    """What `health.serving` shows of one worker; `renewal` gives its lease once it has one."""

    def __init__(self, name: str, counters: WorkCounters, renewal: Callable[[], LeaseRenewal | None]) -> None:
        self.name = name
        self._counters = counters
        self._renewal = renewal

    def health(self) -> WorkerHealth:
        """Judge by the lease: whoever has lost it works for nothing."""
        renewal = self._renewal()
        left, busy = (renewal.seconds_left(), renewal.job_seconds()) if renewal is not None else (0.0, 0.0)
        return WorkerHealth(self.name, left > 0, round(left, 3), round(busy, 3))

    def collect(self) -> Iterator[Metric]:
        """Give the metrics."""
        label, health = ["consumer"], self.health()
        jobs = CounterMetricFamily(
            "outbox_durable_jobs", "Jobs by what became of them", labels=["consumer", "outcome"]
        )
        for outcome, count in self._counters.document().items():
            jobs.add_metric([self.name, outcome], count)
        yield jobs
        for name, number, text in (
            ("healthy", float(health.healthy), "1 while the worker holds its lease"),
            ("lease_seconds_left", health.lease_seconds_left, "How long the lease still holds"),
            ("seconds_at_work", health.seconds_at_work, "How long the job at hand has been at work"),
        ):
            gauge = GaugeMetricFamily(f"outbox_durable_worker_{name}", text, labels=label)
            gauge.add_metric([self.name], number)
            yield gauge
