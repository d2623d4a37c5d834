"""Worker processes: started, restarted after a crash, stopped together.

Processes and not threads, because building records keeps Python busy: one process reached about the
rate of one core. The number of workers may change at any time, on any machine: shards follow.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Event, Thread
from typing import Final

from outbox_connectors.crash_trace import trace_crashes
from outbox_connectors.definition import Definition
from outbox_pipeline.errors import Failed, OutboxError
from outbox_pipeline.relay.counters import RelayCounters
from outbox_pipeline.relay.names import relay_names
from outbox_pipeline.relay.settings import RelaySettings
from outbox_pipeline.relay.wakeup import Waiter
from outbox_pipeline.relay.worker import RelayWorker

RESTART_SECONDS: Final = 1.0
BEGUN: Final = True  # a worker's first message
Say = Callable[[str], None]


@dataclass(slots=True)
class _Child:
    number: int
    process: BaseProcess
    channel: Connection
    begun: bool = False


def supervise(
    definition: Definition, shards: int, settings: RelaySettings, *, say: Say, stop: Event, waiter: Waiter
) -> RelayCounters:
    """Run `settings.workers` processes until all of them are done or `stop` is set.

    A worker that is killed is started again. An error that waiting cannot mend ends all workers and
    is raised; so does a process that ends before it is a worker, as every one would. When this process
    is killed, its workers notice and end too.
    """
    crew = _Crew(definition, shards, settings, say, stop)
    for number in range(settings.workers):
        crew.start(number)
    while crew.children:
        if stop.is_set() or crew.failure:
            crew.tell_to_stop()
        channels = [child.channel for child in crew.children]
        for ready in wait([*channels, waiter.readable], timeout=1.0):
            if ready == waiter.readable:
                waiter.wait(0)
            else:
                crew.hear(next(child for child in crew.children if child.channel is ready))
    if crew.failure:
        raise crew.failure
    return crew.total


@dataclass(slots=True)
class _Crew:
    """The worker processes of one supervisor."""

    definition: Definition
    shards: int
    settings: RelaySettings
    say: Say
    stop: Event
    children: list[_Child] = field(default_factory=list)
    total: RelayCounters = field(default_factory=RelayCounters)
    failure: OutboxError | None = None
    stopping: bool = False

    def start(self, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (self.definition, self.shards, self.settings, theirs)
        process = context.Process(target=_work, args=arguments, name=f"relay-{number}")
        # A Ctrl-C reaches the whole process group; the parent decides what it means. Started with the first
        # child, the tracker would unblock the signal again.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which a child inherits
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.children.append(_Child(number, process, ours))

    def tell_to_stop(self) -> None:
        if not self.stopping:
            self.stopping = True
            for child in self.children:
                with contextlib.suppress(OSError):  # it has ended
                    child.channel.send("stop")

    def hear(self, child: _Child) -> None:
        try:
            message = child.channel.recv()
        except (EOFError, OSError):
            self._ended(child)
            return
        if message is BEGUN:
            child.begun = True
        elif isinstance(message, RelayCounters):
            self.total += message
        elif isinstance(message, OutboxError):
            self.failure = self.failure or message
        else:
            self.say(f"worker {child.number}: {message}")

    def _ended(self, child: _Child) -> None:
        self.children.remove(child)
        child.process.join()
        child.channel.close()
        code = child.process.exitcode or 0
        if self.stopping or self.stop.is_set():
            return
        if code > 0 and not child.begun:
            self.failure = self.failure or Failed(
                f"a worker process cannot start (exit {code}, its reason is above)",
                remedy='a program that calls relay.run with workers needs if __name__ == "__main__"',
            )
        elif code != 0:
            self.say(f"worker {child.number} died (exit {code}), starting another")
            time.sleep(RESTART_SECONDS)
            self.start(child.number)


def _work(definition: Definition, shards: int, settings: RelaySettings, channel: Connection) -> None:
    """Run a worker process until the parent sends a message or is gone."""
    trace_crashes()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stop, waiter = Event(), Waiter()

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):  # the parent is gone
            channel.recv()
        stop.set()
        waiter.wake()

    def tell(message: object) -> None:
        with contextlib.suppress(OSError):  # the parent is gone
            channel.send(message)

    tell(BEGUN)
    Thread(target=listen, daemon=True).start()
    worker = RelayWorker(
        definition, relay_names(definition), shards, settings, say=tell, waiter=waiter, stop=stop
    )
    try:
        worker.run()
    except OutboxError as error:
        tell(error)
    finally:
        tell(worker.counters)
        channel.close()
