"""Health and metrics of one process on an HTTP port: `/health` and `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from threading import Thread
from typing import Any, Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from outbox_connectors.errors import Unreachable
from outbox_connectors.http_port import REQUEST_SECONDS, HttpPort
from outbox_consumers.processes.counters import ConsumerCounters

# Counters of outcomes of events; each of the others is a metric of its own.
_OUTCOMES: Final = (
    "processed",
    "duplicates",
    "skipped",
    "untyped",
    "stale",
    "rejected",
    "dead_letters",
    "parked",
    "unparked",
    "failures",
    "transient",
)


class Monitored(Protocol):
    """What an HTTP port serves about a process. Called from a thread of its own."""

    def health(self) -> Any:
        """Return a dataclass with the attribute `healthy`."""
        ...

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        ...


@dataclass(slots=True)
class ProcessState:
    """The state of a running loop, written by its thread. Reading needs no lock."""

    polled_at: float = 0.0  # monotonic; 0: the loop is not running
    held: int = 0  # records held behind a failing one
    database: bool = True
    lag: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a consumer is healthy, and the values from which that follows."""

    consumer: str
    healthy: bool
    seconds_since_poll: float
    held: int
    database: bool
    lag: int


class MonitoredConsumer:
    """What the HTTP port serves about one consumer."""

    def __init__(
        self,
        name: str,
        counters: ConsumerCounters,
        state: ProcessState,
        limit: float,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.counters = counters
        self.state = state
        self._limit = limit
        self._clock = clock

    def health(self) -> Health:
        """Return the health. It is false without the database, and when the loop has not polled for too long.

        A loop that has not polled for longer than max.poll.interval.ms has lost its partitions. A member that
        Kafka has fenced gets no callback; its loop ends, and with it this port.
        """
        state = self.state
        silent = self._clock() - state.polled_at if state.polled_at else 0.0
        healthy = bool(state.polled_at) and silent <= self._limit and state.database
        return Health(
            self.name, healthy, round(silent, 3), state.held, state.database, sum(state.lag.values())
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        label = ["consumer"]
        numbers = self.counters.document()
        events = CounterMetricFamily(
            "outbox_consumer_events", "Events by outcome", labels=["consumer", "outcome"]
        )
        for outcome in _OUTCOMES:
            events.add_metric([self.name, outcome], numbers.pop(outcome))
        yield events
        for name, value in numbers.items():
            family = CounterMetricFamily(f"outbox_consumer_{name}", name.replace("_", " "), labels=label)
            family.add_metric([self.name], value)
            yield family
        health = self.health()
        for name, number, text in (
            ("seconds_since_poll", health.seconds_since_poll, "Seconds since the last poll"),
            ("held_records", health.held, "Records held behind a failing one"),
            ("healthy", float(health.healthy), "1 while the loop polls and the database is reachable"),
        ):
            gauge = GaugeMetricFamily(f"outbox_consumer_{name}", text, labels=label)
            gauge.add_metric([self.name], number)
            yield gauge
        lag = GaugeMetricFamily(
            "outbox_consumer_lag",
            "Records that are not fetched yet",
            labels=["consumer", "topic", "partition"],
        )
        for (topic, partition), behind in dict(self.state.lag).items():
            lag.add_metric([self.name, topic, str(partition)], behind)
        yield lag


class _Metrics(Collector):
    def __init__(self, shown: Monitored) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        return self._shown.collect()


@contextmanager
def serving(shown: Monitored, host: str, port: int) -> Iterator[int]:
    """Serve /health and /metrics while the block runs; yields the port, which is new for port 0.

    Raises Unreachable when the port is in use.
    """
    registry = CollectorRegistry()
    registry.register(_Metrics(shown))

    class Answer(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(200, CONTENT_TYPE_LATEST, generate_latest(registry))
            elif self.path in ("/", "/health"):
                health = shown.health()
                body = json.dumps(asdict(health))
                self._send(200 if health.healthy else 503, "application/json", body.encode())
            else:
                self._send(404, "text/plain", b"try /health or /metrics\n")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing: probes come every few seconds."""

    try:
        server = HttpPort((host, port), Answer)
    except OSError as error:
        raise Unreachable(
            f"cannot listen on {host}:{port}: {error.strerror}", remedy="choose another --listen"
        ) from None
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
