"""Health and metrics of one worker of a durable inbox, for its HTTP port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from outbox_consumers.durable.counters import WorkCounters
from outbox_consumers.durable.lease import LeaseRenewal


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The health of a worker: it is healthy while it holds its lease, which requires a working database."""

    consumer: str
    healthy: bool
    lease_seconds_left: float
    seconds_at_work: float  # since the current handler call began; 0 between calls


class MonitoredWorker:
    """The health and metrics of one worker. `renewal` returns its lease renewal, None before it starts."""

    def __init__(self, name: str, counters: WorkCounters, renewal: Callable[[], LeaseRenewal | None]) -> None:
        self.name = name
        self._counters = counters
        self._renewal = renewal

    def health(self) -> WorkerHealth:
        """Return the health, judged by the lease: a worker without one cannot commit anything."""
        renewal = self._renewal()
        left, busy = (renewal.seconds_left(), renewal.job_seconds()) if renewal is not None else (0.0, 0.0)
        return WorkerHealth(self.name, left > 0, round(left, 3), round(busy, 3))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        label, health = ["consumer"], self.health()
        jobs = CounterMetricFamily("outbox_durable_jobs", "Jobs by outcome", labels=["consumer", "outcome"])
        for outcome, count in self._counters.document().items():
            jobs.add_metric([self.name, outcome], count)
        yield jobs
        for name, number, text in (
            ("healthy", float(health.healthy), "1 while the worker holds its lease"),
            ("lease_seconds_left", health.lease_seconds_left, "Seconds until the lease expires"),
            ("seconds_at_work", health.seconds_at_work, "Seconds since the current handler call began"),
        ):
            gauge = GaugeMetricFamily(f"outbox_durable_worker_{name}", text, labels=label)
            gauge.add_metric([self.name], number)
            yield gauge
