"""Measure the latency from commit to Kafka with ticks: those that arrive have passed slot and connector."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Protocol

from outbox_pipeline.connect.canary import is_message_at
from outbox_pipeline.errors import OutboxError
from outbox_pipeline.servers import lsn

MAX_IN_FLIGHT = 32  # ticks in flight that are remembered; older ones count as lost
READ_SECONDS = 0.2
PAUSE_SECONDS = 5.0  # before Kafka is tried again


class Arrived(Protocol):
    """A record that was read."""

    @property
    def value(self) -> bytes | None: ...


class Follower(Protocol):
    """What reads a topic from its end on."""

    def follow(self, pattern: re.Pattern[str], *, from_end: bool = False) -> frozenset[str]: ...

    def read(self, timeout_seconds: float) -> list[Arrived]: ...

    def close(self) -> None: ...


class LatencyProbe:
    """Matches ticks with their arrivals. `sent` may be called from another thread than `run`."""

    def __init__(self, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pattern = re.compile(re.escape(topic))
        self._clock = clock
        self._lock = threading.Lock()
        self._in_flight: dict[int, float] = {}  # position -> when it was sent
        self._latest: tuple[float, float] | None = None  # (latency in seconds, when it arrived)

    def sent(self, position: str) -> None:
        """A tick was written into the log at `X/Y`."""
        with self._lock:
            self._in_flight[lsn.parse(position)] = self._clock()
            while len(self._in_flight) > MAX_IN_FLIGHT:
                del self._in_flight[next(iter(self._in_flight))]

    def arrived(self, value: bytes | None) -> None:
        """A record of the topic was read."""
        now = self._clock()
        with self._lock:
            found = next((position for position in self._in_flight if is_message_at(position, value)), None)
            if found is not None:
                self._latest = (now - self._in_flight[found], now)
                self._in_flight = {place: at for place, at in self._in_flight.items() if place > found}

    def seconds(self, within: float) -> float | None:
        """Return how long the latest tick took, or how long the one in flight has been if that is longer.

        None when nothing arrived in the last `within` seconds and nothing is in flight.
        """
        now = self._clock()
        with self._lock:
            waiting = now - next(iter(self._in_flight.values())) if self._in_flight else 0.0
            taken = self._latest[0] if self._latest and now - self._latest[1] <= within else None
        if taken is None:
            return waiting or None
        return max(taken, waiting) if waiting > within else taken

    def run(self, reader: Callable[[], Follower], stopped: threading.Event) -> None:
        """Read the topic until `stopped`; Kafka may come and go, and so may the topic."""
        while not stopped.is_set():
            try:
                follower = reader()
            except OutboxError:
                stopped.wait(PAUSE_SECONDS)
                continue
            try:
                self._read(follower, stopped)
            except OutboxError:
                stopped.wait(PAUSE_SECONDS)
            finally:
                follower.close()

    def _read(self, follower: Follower, stopped: threading.Event) -> None:
        found = follower.follow(self._pattern, from_end=True)
        while not stopped.is_set():
            if not found:
                stopped.wait(PAUSE_SECONDS)
                found = follower.follow(self._pattern)
                continue
            for record in follower.read(READ_SECONDS):
                self.arrived(record.value)
