"""When the demo kills which process. RunProgress decides without I/O; Scenario acts on it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from demo_run.id_reader import IdReader
from demo_run.stacks import DemoStack

POLL_SECONDS = 0.1
REPORT_SECONDS = 2.0
IDLE_REPORT_SECONDS = 10.0  # when the numbers stay the same
Log = Callable[[str], None]


class Victim(Enum):
    """A process that the demo kills and starts again."""

    BILLING = auto()
    CONNECT = auto()


# Share of the orders that are invoiced, and the process that is killed then.
KILLS = ((0.15, Victim.BILLING), (0.35, Victim.CONNECT), (0.6, Victim.BILLING))


@dataclass(slots=True)
class RunProgress:
    """Counts of a run."""

    orders: int
    written: int = 0
    applied: int = 0
    kills_done: int = 0  # entries of KILLS that were carried out

    def due(self) -> Victim | None:
        """Give the process to kill now, if any."""
        if self.kills_done == len(KILLS):
            return None
        share, victim = KILLS[self.kills_done]
        return victim if self.applied >= share * self.orders else None

    @property
    def finished(self) -> bool:
        """Whether every order has an invoice and every kill was carried out."""
        return self.applied >= self.orders and self.kills_done == len(KILLS)


@dataclass(slots=True)
class Scenario:
    """One run on a stack, from the first order to the last invoice."""

    stack: DemoStack
    reader: IdReader
    progress: RunProgress
    log: Log
    clock: Callable[[], float] = time.monotonic
    _reported_at: float = field(default=0.0)
    _reported: tuple[int, ...] = field(default=())

    def run(self, shop: subprocess.Popen[bytes], stall_seconds: float) -> bool:
        """Run until all is applied. Returns False after a failure or `stall_seconds` without progress."""
        last_seen, moved = (-1, -1), self.clock()
        while not self.progress.finished:
            self._poll()
            seen = (self.progress.written, self.progress.applied)
            if seen != last_seen:
                last_seen, moved = seen, self.clock()
            victim = self.progress.due()
            if victim is not None:
                self._kill_and_restart(victim)
                moved = self.clock()
            failure = self._failure(shop)
            if not failure and self.clock() - moved > stall_seconds:
                failure = f"no progress for {stall_seconds:g} s"
            if failure:
                self.log(failure)
                return False
        self._report()
        return True

    def _failure(self, shop: subprocess.Popen[bytes]) -> str:
        if shop.poll() not in (None, 0) and self.progress.written < self.progress.orders:
            return f"the shop exited with code {shop.returncode}"
        return self.stack.billing_failure()

    def _poll(self) -> None:
        self.reader.read_topics(POLL_SECONDS)
        self.progress.written = len(self.reader.written())
        self.progress.applied = len(set(self.reader.applied()))
        seconds = self.clock() - self._reported_at
        changed = self._reported != self._numbers()
        if seconds >= (REPORT_SECONDS if changed else IDLE_REPORT_SECONDS):
            self._report()

    def _numbers(self) -> tuple[int, ...]:
        return self.progress.written, len(set(self.reader.delivered)), self.progress.applied

    def _report(self) -> None:
        written, delivered, applied = self._reported = self._numbers()
        orders = self.progress.orders
        self.log(f"written {written:>6,}   delivered {delivered:>6,}   applied {applied:>6,}   of {orders:,}")
        self._reported_at = self.clock()

    def _kill_and_restart(self, victim: Victim) -> None:
        self.progress.kills_done += 1
        if victim is Victim.BILLING:
            self.log("kill -9 billing, and start it again")
            self.stack.kill_billing()
            self.stack.start_billing()
        else:
            self.log("kill -9 Kafka Connect, and start it again")
            self.stack.kill_connect()
            self.stack.start_connect()
            self.log("Kafka Connect is back")
        self._reported_at = self.clock()
