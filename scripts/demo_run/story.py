"""What happens in the demo, and when: a pure stepper decides, the loop around it acts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from demo_run.places import Places
from demo_run.roads import Road

LOOK_SECONDS = 0.1
TELL_SECONDS = 2.0
QUIET_SECONDS = 10.0  # while nothing changes
Say = Callable[[str], None]


class Event(Enum):
    """Something done to the road."""

    KILL_BILLING = auto()
    KILL_CONNECT = auto()


# When this share of the orders has its invoice, this happens.
PLOT = ((0.15, Event.KILL_BILLING), (0.35, Event.KILL_CONNECT), (0.6, Event.KILL_BILLING))


@dataclass(slots=True)
class Progress:
    """How far a run has come."""

    orders: int
    written: int = 0
    applied: int = 0
    happened: int = 0  # events of the plot that are over

    def due(self) -> Event | None:
        """Say what is to happen now, if anything."""
        if self.happened == len(PLOT):
            return None
        share, event = PLOT[self.happened]
        return event if self.applied >= share * self.orders else None

    @property
    def over(self) -> bool:
        """Whether every order has an invoice and the plot has come to its end."""
        return self.applied >= self.orders and self.happened == len(PLOT)


@dataclass(slots=True)
class Story:
    """A run on a road, from the first order to the last invoice."""

    road: Road
    places: Places
    progress: Progress
    say: Say
    clock: Callable[[], float] = time.monotonic
    _told: float = field(default=0.0)
    _shown: tuple[int, ...] = field(default=())

    def run(self, shop: subprocess.Popen[bytes], patience_seconds: float) -> bool:
        """Act until all is applied. False when nothing has moved for `patience_seconds`, or never will."""
        last_seen, moved = (-1, -1), self.clock()
        while not self.progress.over:
            self._look()
            seen = (self.progress.written, self.progress.applied)
            if seen != last_seen:
                last_seen, moved = seen, self.clock()
            event = self.progress.due()
            if event is not None:
                self._act(event)
                moved = self.clock()
            trouble = self._trouble(shop)
            if not trouble and self.clock() - moved > patience_seconds:
                trouble = f"nothing has moved for {patience_seconds:g} s"
            if trouble:
                self.say(trouble)
                return False
        self._tell()
        return True

    def _trouble(self, shop: subprocess.Popen[bytes]) -> str:
        if shop.poll() not in (None, 0) and self.progress.written < self.progress.orders:
            return f"the shop has ended with code {shop.returncode}"
        return self.road.trouble()

    def _look(self) -> None:
        self.places.read_topics(LOOK_SECONDS)
        self.progress.written = len(self.places.written())
        self.progress.applied = len(set(self.places.applied()))
        seconds = self.clock() - self._told
        if seconds >= QUIET_SECONDS or (seconds >= TELL_SECONDS and self._shown != self._numbers()):
            self._tell()

    def _numbers(self) -> tuple[int, ...]:
        return self.progress.written, len(set(self.places.delivered)), self.progress.applied

    def _tell(self) -> None:
        written, delivered, applied = self._shown = self._numbers()
        orders = self.progress.orders
        self.say(f"written {written:>6,}   delivered {delivered:>6,}   applied {applied:>6,}   of {orders:,}")
        self._told = self.clock()

    def _act(self, event: Event) -> None:
        self.progress.happened += 1
        if event is Event.KILL_BILLING:
            self.say("kill -9 billing, and start it again")
            self.road.kill_billing()
            self.road.start_billing()
        else:
            self.say("kill -9 Kafka Connect, and start it again")
            self.road.kill_connect()
            self.road.start_connect()
            self.say("Kafka Connect is back")
        self._told = self.clock()
