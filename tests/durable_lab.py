"""A place to try the durable inbox: jobs with effects, workers in processes that die where they should."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any, Final

import psycopg
from uuid_utils.compat import uuid7

from outbox_consumers import Event, RetryStrategy
from outbox_consumers.durable import DurableInbox, Job, steps
from outbox_consumers.durable.jobs import JobWriter
from outbox_consumers.durable.lease import LeaseRenewal
from outbox_consumers.durable.queue import JobQueue
from outbox_consumers.durable.session import WorkerSession
from outbox_consumers.durable.worker import JobWorker
from outbox_consumers.handlers.session import ConsumerSession
from outbox_consumers.inbox import schema
from outbox_consumers.loop.group_member import GroupMember
from waiting import PATIENCE_SECONDS, until

QUICK: Final = RetryStrategy(wait=0.05, exponential_wait=0)
LEASE: Final = 60.0  # nobody's runs out because a machine is busy
SHORT_LEASE: Final = 2.0  # for one that is meant to run out


@dataclass(slots=True)
class Lab:
    """One database with a durable inbox and a table of effects."""

    dsn: str
    folder: Path
    put: list[uuid.UUID] = field(default_factory=list)

    def create(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            schema.apply(conn, [*schema.steps(), *steps()])
            conn.execute(
                "CREATE TABLE effect (place bigint GENERATED ALWAYS AS IDENTITY, event_id uuid,"
                " key text, n int)"
            )

    def inbox(self, **settings: Any) -> DurableInbox:
        """Make a durable inbox whose handler writes one row per job."""
        durable = bare(self.dsn, **settings)

        @durable.handler("Work")
        def work(conn: psycopg.Connection[Any], event: Event) -> None:
            write_effect(conn, event)

        return durable

    def jobs(self, count: int, keys: int = 10, kind: str = "Work") -> None:
        """Put jobs in, numbered, spread over the keys; every eleventh has none."""
        first = len(self.put)
        jobs = [
            Job(kind, {"n": n}, key="" if n % 11 == 10 else f"k{n % keys}", id=uuid7())
            for n in range(first, first + count)
        ]
        self.put += [job.id for job in jobs if job.id]
        with psycopg.connect(self.dsn) as conn:
            assert bare(self.dsn).put_many(conn, jobs) == count

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return conn.execute(statement.encode(), values or None).fetchall()

    def run(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(statement.encode())

    def left(self) -> int:
        """Count the jobs that are not over."""
        [(count,)] = self.query("SELECT count(*) FROM inbox_job WHERE state NOT IN ('done', 'dead')")
        return int(count)

    def states(self) -> dict[str, int]:
        return dict(self.query("SELECT state, count(*) FROM inbox_job GROUP BY 1"))

    def effects(self, key: str | None = None) -> list[int]:
        """Read the effects' numbers in the order they were written."""
        rows = self.query("SELECT n FROM effect WHERE %s::text IS NULL OR key = %s ORDER BY place", key, key)
        return [n for (n,) in rows]

    def applied_once_in_order(self) -> None:
        """Prove by ids: one effect for each job, and those of a key in the order of their numbers."""
        applied = dict(self.query("SELECT event_id, count(*) FROM effect GROUP BY 1"))
        assert {i for i, times in applied.items() if times > 1} == set(), "applied twice"
        assert set(self.put) - set(applied) == set(), "lost"
        assert set(applied) - set(self.put) == set(), "applied without having been put in"
        broken = self.query(
            "SELECT * FROM (SELECT key, n, lag(n) OVER (PARTITION BY key ORDER BY place) AS before"
            " FROM effect WHERE key <> '') AS e WHERE before > n"
        )
        assert broken == [], "out of order"

    def worker(self, **plan: Any) -> Child:
        """Start a worker in a process of its own, see `work_by_plan`.

        It is forked from a process that has imported everything and nothing else: starting Python for
        each of many workers would take longer than their work.
        """
        log = self.folder / f"{uuid.uuid4().hex}.log"
        process = forks().Process(target=work_by_plan, args=(self.dsn, plan, log))
        process.start()
        return Child(process, log)

    def expire_leases(self) -> None:
        """Declare every worker dead, as the parent of killed ones does: nobody waits for their leases."""
        self.run("UPDATE inbox_worker SET alive_until = '-infinity'")

    def outlive(self) -> None:
        """Wait until the lease of every worker has run out."""
        until(lambda: self.query("SELECT count(*) FROM inbox_worker WHERE alive_until > now()") == [(0,)])

    def drain(self) -> None:
        """Let one more worker finish everything."""
        finish(self, self.inbox())


@dataclass(frozen=True, slots=True)
class Child:
    """A worker in a process of its own, and what it has logged."""

    process: ForkServerProcess
    log: Path

    def ends(self) -> int:
        """Wait for its end and give the exit code, negative for a signal."""
        self.process.join(PATIENCE_SECONDS)
        assert self.process.exitcode is not None, f"it does not end: {self.said()}"
        return self.process.exitcode

    def said(self) -> str:
        return self.log.read_text()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def stops(self) -> int:
        """Ask it to stop."""
        self.process.terminate()
        return self.ends()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def children(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(child) for child in children.read_text().split()]

    def shoot(self, chance: random.Random) -> None:
        """Kill one of its processes, as soon as there is one."""
        until(self.children)
        os.kill(chance.choice(self.children()), signal.SIGKILL)

    def frozen(self) -> bool:
        text = Path(f"/proc/{self.pid}/stat").read_text()
        return text.rsplit(")", 1)[1].split()[0] == "T"


def bare(dsn: str, **settings: Any) -> DurableInbox:
    defaults: dict[str, Any] = {"retry": QUICK, "lease": LEASE}
    return DurableInbox("billing", dsn=dsn, **(defaults | settings))


def write_effect(conn: psycopg.Connection[Any], event: Event) -> None:
    conn.execute(
        "INSERT INTO effect (event_id, key, n) VALUES (%s, %s, %s)",
        (event.id, event.key, event.data["n"]),
    )


def finish(lab: Lab, durable: DurableInbox, workers: int = 1) -> None:
    """Let workers in threads finish everything."""
    with working(durable, workers):
        until(lambda: lab.left() == 0)


@contextmanager
def working(durable: DurableInbox, workers: int = 1) -> Iterator[Sequence[JobWorker]]:
    """Run workers in threads while the block runs; what they raise comes out here."""
    failures: list[BaseException] = []
    stop = threading.Event()
    made = [durable._new_worker(f"thread-{number}", kill=False) for number in range(workers)]

    def run(worker: JobWorker) -> None:
        try:
            worker.run(stop.is_set)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        stop.set()
        for worker in made:
            worker.renewal.wake()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert not [thread for thread in threads if thread.is_alive()], "a worker does not stop"
    if failures:
        raise failures[0]


# -- The worker in a process of its own ----------------------------------------------------------------


class Fuse:
    """Kills or freezes the process the n-th time a step was taken."""

    def __init__(self, step: str, times: int, number: signal.Signals) -> None:
        self._step = step
        self._left = times
        self._number = number

    def after(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._number)


def forks() -> ForkServerContext:
    """Give the server that workers are forked from; it starts with the first of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # Python 3.11 starts it without our path
    try:
        ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def work_by_plan(dsn: str, plan: dict[str, Any], log: Path) -> None:
    """Work until SIGTERM or the planned end: with step and times it kills itself after the n-th such step."""
    with log.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    logging.basicConfig(level=logging.WARNING)
    fuse = Fuse(plan.get("step", ""), plan.get("times", 1), signal.Signals[plan.get("signal", "SIGKILL")])
    arm(fuse)
    durable = bare(dsn, lease=plan.get("lease", LEASE), **plan.get("settings", {}))

    @durable.handler(
        plan.get("kind", "Work"), max_attempts=plan.get("max_attempts"), together=plan.get("together", False)
    )
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        if plan.get("deadly") == event.data["n"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if plan.get("seconds"):
            time.sleep(plan["seconds"])
        if plan.get("failing") and event.attempt == 1 and event.data["n"] % 5 == 0:
            raise RuntimeError("fails once")
        if not plan.get("silent"):
            write_effect(conn, event)
        fuse.after("effect")

    if plan.get("mute"):
        LeaseRenewal._extend = lambda self, conn: None  # type: ignore[method-assign]  # a lease nobody extends
    if plan.get("receive"):
        durable.receive()
    elif plan.get("fleet"):
        durable.run(workers=plan["fleet"])
    else:
        durable.work()


def arm(fuse: Fuse) -> None:
    """Let the fuse hear of each step of worker and receiver."""
    ending: list[object] = []  # a commit counts when it is that of a finished job

    def finished(self: object, result: object) -> None:
        ending.append(self)
        fuse.after("finish")

    def committed(self: object, result: object) -> None:
        if ending:
            ending.clear()
            fuse.after("commit")

    def taken(self: object, result: object) -> None:
        if result:
            fuse.after("take")

    tap(JobQueue, "finish", finished)
    tap(JobQueue, "fail", lambda self, result: fuse.after("fail"))
    tap(WorkerSession, "commit", committed)
    tap(JobWorker, "_take", taken)
    tap(JobWorker, "_flush_handled", lambda self, result: fuse.after("flush"))
    tap(JobWriter, "enqueue", lambda self, result: fuse.after("enqueue"))
    tap(ConsumerSession, "commit", lambda self, result: fuse.after("received"))
    tap(GroupMember, "store", lambda self, result: fuse.after("store"))


def tap(owner: type, name: str, listen: Callable[[object, object], None]) -> None:
    """Call `listen` after each call of a method."""
    method = getattr(owner, name)

    def call(self: object, *arguments: object) -> object:
        result = method(self, *arguments)
        listen(self, result)
        return result

    setattr(owner, name, call)
