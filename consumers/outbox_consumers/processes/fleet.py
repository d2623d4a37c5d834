"""Processes under one parent: start them, restart those that end, stop them all at the end.

A consumer and a durable inbox define what their processes do (`Role`); the rest is the same for both.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Final, TypeAlias

from outbox_connectors import backoff
from outbox_connectors.crash_trace import trace_crashes
from outbox_connectors.errors import OutboxError
from outbox_connectors.signals import STOP_SIGNALS, Stopping
from outbox_consumers.errors import Failed, ReadOnlyDatabase, Unreachable
from outbox_consumers.processes.health import Monitored, serving

log = logging.getLogger("outbox_consumers")

Address: TypeAlias = tuple[str, int]  # where health and metrics are served: host and port

CHECK_SECONDS: Final = 0.5
STOP_CHECK_SECONDS: Final = 0.2
MIN_RESTART_PAUSE: Final = 0.2
MAX_RESTART_PAUSE: Final = 30.0
HEALTHY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Role:
    """What a process runs, under a given name, until `stop` is called, and what its HTTP port serves."""

    run: Callable[[str], None]
    stop: Callable[[], None]
    shown: Monitored


@dataclass(slots=True)
class _Member:
    """A place in the fleet, and its current process."""

    place: str
    role: Role
    listen: Address | None
    name: str = ""
    process: ForkProcess | None = None
    failures: Connection | None = None  # on which the process says why it cannot work
    crashes: int = 0
    started: float = 0.0
    short_runs: int = 0  # in a row, since it last ran for HEALTHY_SECONDS
    restart_at: float = 0.0


class Fleet:
    """A process for each role, until the parent is asked to stop.

    Processes are forked, so that roles may hold any functions; the parent must hold no connection and no
    Kafka client. A child whose parent ends stops by itself. With `listen`, health and metrics of the first
    role are served on that port, those of each further one on the next port. `grace` is how many seconds the
    processes have to stop.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        on_exit: Callable[[str], None],
        grace: float,
        listen: Address | None = None,
    ) -> None:
        run = f"{socket.gethostname()}/{uuid.uuid4().hex[:8]}"
        self._members = [
            _Member(place, role, (listen[0], listen[1] + number) if listen else None)
            for number, (place, role) in enumerate(roles.items())
        ]
        self._run = run
        self._on_exit = on_exit  # called with the name of a process that was killed or crashed
        self._grace = grace
        self._fork = multiprocessing.get_context("fork")
        self._count = 0

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set or SIGTERM or SIGINT arrives, then stop all processes.

        Raises Failed with the reason when a process reports that it cannot work. A restarted process may find
        a server unreachable, for which the others wait; then it is restarted again later.
        """
        with Stopping(stop.set):
            try:
                while not stop.is_set():
                    self._start_missing()
                    self._wait_for_exit()
            finally:
                self._stop_all()

    def _start_missing(self) -> None:
        now = time.monotonic()
        for member in self._members:
            if member.process is None and now >= member.restart_at:
                self._count += 1
                member.name = f"{self._run}/{member.place}.{self._count}"
                member.failures, failures = self._fork.Pipe(duplex=False)
                member.process = self._fork.Process(
                    target=_child,
                    args=(member.role, member.name, member.listen, os.getpid(), failures),
                    name=member.place,
                )
                self._start(member.process)
                member.started = now
                failures.close()

    def _start(self, process: ForkProcess) -> None:
        """Fork, with the stop signals blocked until the child has its own handlers.

        A child starts with the parent's handlers, which stop only its copy of the parent: a SIGTERM at that
        moment would be lost, and the child killed when the grace period ends.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _wait_for_exit(self) -> None:
        """Wait up to CHECK_SECONDS for a process to end, and handle those that ended."""
        alive = [member.process.sentinel for member in self._members if member.process is not None]
        connection.wait(alive, CHECK_SECONDS)
        for member in self._members:
            if member.process is not None and member.process.exitcode is not None:
                self._handle_exit(member, member.process.exitcode)

    def _handle_exit(self, member: _Member, code: int) -> None:
        reason, temporary = self._exit_reason(member)
        member.process = None
        if reason and not (temporary and member.crashes):
            raise Failed(f"{member.place} cannot work: {reason}")
        member.crashes += 1
        self._report_exit(member.name)
        lived = time.monotonic() - member.started
        member.short_runs = 0 if lived > HEALTHY_SECONDS else member.short_runs + 1
        pause = backoff.delay(member.short_runs + 1, MIN_RESTART_PAUSE, MAX_RESTART_PAUSE)
        member.restart_at = time.monotonic() + pause
        outcome = f"cannot work: {reason}" if reason else f"ended with {_describe_exit_code(code)}"
        log.error("%s %s; restarting in %.1f s", member.name, outcome, pause)

    def _stop_all(self) -> None:
        """Ask all processes to finish their current work; kill those that exceed the grace period."""
        processes = [(member, member.process) for member in self._members if member.process is not None]
        for _, process in processes:
            process.terminate()
        end = time.monotonic() + self._grace
        for member, process in processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.exitcode is None:
                log.error("%s did not finish within %g s; killing it", member.name, self._grace)
                process.kill()
                process.join()
            if process.exitcode != 0:
                self._report_exit(member.name)

    def _report_exit(self, name: str) -> None:
        try:
            self._on_exit(name)
        except Exception as error:
            log.warning("%s: its lease runs out by itself: %s", name, " ".join(str(error).split()))

    def _exit_reason(self, member: _Member) -> tuple[str, bool]:
        """Return why a process could not work, empty if it did not say, and whether that may be temporary."""
        failures, member.failures = member.failures, None
        if failures is None:
            return "", False
        with failures:
            try:
                reason, temporary = failures.recv() if failures.poll() else ("", False)
            except (EOFError, OSError):
                return "", False
        return str(reason), bool(temporary)


def fill(role: Role, name: str, listen: Address | None) -> None:
    """Run a role in this process and serve its port. Raises Unreachable when the port is in use."""
    with serving(role.shown, *listen) if listen else nullcontext():
        role.run(name)


def _child(role: Role, name: str, listen: Address | None, parent: int, failures: Connection) -> None:
    """Run a role in a child process; report to the parent why it cannot work."""
    trace_crashes()
    random.seed()  # otherwise all children of one parent would draw the same delays
    stop_requested = threading.Event()

    def stopping() -> bool:
        return stop_requested.is_set() or os.getppid() != parent

    threading.Thread(target=_stop_when_requested, args=(stopping, role.stop), daemon=True).start()
    with Stopping(stop_requested.set):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # blocked by the parent's `_start`
        try:
            fill(role, name, listen)
        except OutboxError as error:
            with suppress(OSError):  # the parent is gone
                failures.send((str(error), isinstance(error, Unreachable | ReadOnlyDatabase)))
            raise SystemExit(int(error.exit_code)) from None


def _stop_when_requested(stopping: Callable[[], bool], stop: Callable[[], None]) -> None:
    """Call `stop` repeatedly once it is requested: a call before the role runs has no effect."""
    while True:
        time.sleep(STOP_CHECK_SECONDS)
        if stopping():
            stop()


def _describe_exit_code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
