"""For the tests of your consumers: a connection that never commits, and a matrix of process crashes.

    with testing.connection(dsn) as conn:
        result = app.test([Event("OrderPlaced", {"total": 5}, key="42")], conn)
        assert result.processed == 1

`crash_matrix` runs an application in child processes, kills each with SIGKILL at a different step of the
loop and lets the last one finish. Your test then checks the effects, by ids. For the workers of a durable
inbox pass `steps=JOB_STEPS`, for its receiver `steps=STEPS`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final

import psycopg

from outbox_consumers import application
from outbox_consumers.durable import DurableInbox
from outbox_consumers.durable.queue import JobQueue
from outbox_consumers.durable.worker import JobWorker
from outbox_consumers.failures.dead_letter import DeadLetters
from outbox_consumers.failures.parked import Parked
from outbox_consumers.handlers.connection import HandlerConnection, HandlerCursor
from outbox_consumers.handlers.session import ConsumerSession
from outbox_consumers.inbox.claims import Inbox
from outbox_consumers.loop.group_member import GroupMember
from outbox_consumers.loop.transaction import EventTransaction

# step -> (class, method, kill before or after it). In the order of the loop.
STEPS: Final[Mapping[str, tuple[type, str, str]]] = {
    "fetched": (GroupMember, "fetch", "after"),
    "begun": (ConsumerSession, "begin", "after"),
    "claimed": (Inbox, "claim", "after"),
    "handled": (EventTransaction, "_handle", "after"),
    "parked": (Parked, "park", "after"),
    "dead letter written": (DeadLetters, "add", "after"),
    "unparked": (Parked, "remove", "after"),
    "postponed": (Parked, "postpone", "after"),
    "about to commit": (ConsumerSession, "commit", "before"),
    "committed": (ConsumerSession, "commit", "after"),
    "about to store": (GroupMember, "store", "before"),
    "stored": (GroupMember, "store", "after"),
}
# The same for a worker of a durable inbox.
JOB_STEPS: Final[Mapping[str, tuple[type, str, str]]] = {
    "job taken": (JobWorker, "_take", "after"),
    "job worked": (JobWorker, "_call_handler", "after"),
    "job postponed": (JobQueue, "fail", "after"),
    "job dead": (JobQueue, "mark_dead", "after"),
    "job about to commit": (JobQueue, "finish", "after"),
    "job committed": (JobWorker, "_adapt_take_size", "before"),
}
_MAY_BE_EMPTY: Final = ("_take", "fetch")  # an empty result does not count as a step


@contextmanager
def connection(dsn: str = "") -> Iterator[psycopg.Connection[Any]]:
    """Open a connection as handlers get it, in a transaction that is rolled back at the end."""
    conn = HandlerConnection.connect(dsn, autocommit=True, cursor_factory=HandlerCursor)
    try:
        psycopg.Cursor(conn).execute("BEGIN")
        yield conn
    finally:
        conn.close()


@dataclass(frozen=True, slots=True)
class Crash:
    """One process of the matrix: the step at which to kill it, and whether it got there."""

    step: str
    nth: int
    killed: bool


def crash_matrix(
    reference: str,
    done: Callable[[], bool],
    *,
    steps: Sequence[str] = tuple(STEPS),
    nths: Sequence[int] = (1,),
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    patience: float = 30.0,
    before_each: Callable[[str], None] = lambda step: None,
) -> list[Crash]:
    """Run the application MODULE:APP once for each step and kill it there, then let one process finish.

    MODULE:APP is a Consumer, or a DurableInbox of which one worker or the receiver is killed.

    `done` returns whether everything is handled; `before_each` may send more events, so that every process
    has something to do. A process that does not reach its step within `patience` seconds is killed and
    reported with `killed` False. Raises TimeoutError if the last one does not finish.
    """
    crashes = []
    for step in steps:
        for nth in nths:
            before_each(step)
            child = _start(reference, step, nth, environ, folder)
            crashes.append(Crash(step, nth, _died(child, patience)))
    last = _start(reference, "", 0, environ, folder)
    try:
        end = time.monotonic() + patience
        while not done():
            if time.monotonic() > end or last.poll() is not None:
                raise TimeoutError(f"the last process did not finish within {patience} s")
            time.sleep(0.05)
        last.send_signal(signal.SIGTERM)
        last.wait(patience)
    finally:
        last.kill()
        last.wait()
    return crashes


def _start(
    reference: str, step: str, nth: int, environ: Mapping[str, str] | None, folder: Path | None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __name__, reference, step, str(nth)]
    return subprocess.Popen(command, env=os.environ | (environ or {}), cwd=folder)


def _died(child: subprocess.Popen[bytes], patience: float) -> bool:
    try:
        return child.wait(patience) == -signal.SIGKILL
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return False


def _kill_at(place: tuple[type, str, str], nth: int) -> None:
    """Replace a step's method in this process so that its nth call kills the process."""
    owner, name, when = place
    original = getattr(owner, name)
    calls = 0

    @wraps(original)
    def method(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        result = None if when == "before" else original(*arguments, **named)
        if name not in _MAY_BE_EMPTY or result:
            calls += 1
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named) if when == "before" else result

    setattr(owner, name, method)


def main(arguments: Sequence[str]) -> None:
    """Run an application and kill it at a step: `python -m outbox_consumers.testing MODULE:APP STEP NTH`."""
    reference, step, nth = arguments
    sys.path.insert(0, str(Path.cwd()))
    app = application.load(reference)
    run: Callable[[], None] = app.run
    if step:
        _kill_at({**STEPS, **JOB_STEPS}[step], int(nth))
        if isinstance(app, DurableInbox):
            run = app.work if step in JOB_STEPS else app.receive
    run()


if __name__ == "__main__":
    main(sys.argv[1:])
