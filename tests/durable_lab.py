"""Durable inboxes for tests: jobs with effects, and workers in processes that kill themselves at a step."""

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
LEASE: Final = 60.0  # long enough not to expire on a busy machine
SHORT_LEASE: Final = 2.0  # for a lease that is meant to expire


@dataclass(slots=True)
class Lab:
    """One database with a durable inbox and a table of effects."""

    dsn: str
    folder: Path
    job_ids: list[uuid.UUID] = field(default_factory=list)

    def create(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            schema.apply(conn, [*schema.steps(), *steps()])
            conn.execute(
                "CREATE TABLE effect (place bigint GENERATED ALWAYS AS IDENTITY, event_id uuid,"
                " key text, n int)"
            )

    def inbox(self, **settings: Any) -> DurableInbox:
        """Make a durable inbox whose handler writes one row per job."""
        durable = new_inbox(self.dsn, **settings)

        @durable.handler("Work")
        def work(conn: psycopg.Connection[Any], event: Event) -> None:
            write_effect(conn, event)

        return durable

    def add_jobs(self, count: int, keys: int = 10, kind: str = "Work") -> None:
        """Add numbered jobs, spread over the keys; every eleventh has no key."""
        first = len(self.job_ids)
        jobs = [
            Job(kind, {"n": n}, key="" if n % 11 == 10 else f"k{n % keys}", id=uuid7())
            for n in range(first, first + count)
        ]
        self.job_ids += [job.id for job in jobs if job.id]
        with psycopg.connect(self.dsn) as conn:
            assert new_inbox(self.dsn).put_many(conn, jobs) == count

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return conn.execute(statement.encode(), values or None).fetchall()

    def run(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(statement.encode())

    def left(self) -> int:
        """Count the jobs that have not ended."""
        [(count,)] = self.query("SELECT count(*) FROM inbox_job WHERE state NOT IN ('done', 'dead')")
        return int(count)

    def states(self) -> dict[str, int]:
        return dict(self.query("SELECT state, count(*) FROM inbox_job GROUP BY 1"))

    def effects(self, key: str | None = None) -> list[int]:
        """Read the numbers of the effects in the order in which they were written."""
        rows = self.query("SELECT n FROM effect WHERE %s::text IS NULL OR key = %s ORDER BY place", key, key)
        return [n for (n,) in rows]

    def assert_applied_once_in_order(self) -> None:
        """Assert one effect for each job id, and those of a key in the order of their numbers."""
        applied = dict(self.query("SELECT event_id, count(*) FROM effect GROUP BY 1"))
        assert {i for i, times in applied.items() if times > 1} == set(), "applied twice"
        assert set(self.job_ids) - set(applied) == set(), "lost"
        assert set(applied) - set(self.job_ids) == set(), "applied but never added"
        broken = self.query(
            "SELECT * FROM (SELECT key, n, lag(n) OVER (PARTITION BY key ORDER BY place) AS before"
            " FROM effect WHERE key <> '') AS e WHERE before > n"
        )
        assert broken == [], "out of order"

    def worker(self, **plan: Any) -> Child:
        """Start a worker in a process of its own, see `work_by_plan`.

        It is forked from a server process that has imported all modules: starting Python for each worker
        would take longer than its work.
        """
        log = self.folder / f"{uuid.uuid4().hex}.log"
        process = fork_server().Process(target=work_by_plan, args=(self.dsn, plan, log))
        process.start()
        return Child(process, log)

    def expire_leases(self) -> None:
        """End the lease of every worker, as the parent of killed processes does."""
        self.run("UPDATE inbox_worker SET alive_until = '-infinity'")

    def wait_for_lease_expiry(self) -> None:
        """Wait until the lease of every worker has expired."""
        until(lambda: self.query("SELECT count(*) FROM inbox_worker WHERE alive_until > now()") == [(0,)])

    def finish_all(self) -> None:
        """Run one more worker until all jobs have ended."""
        finish(self, self.inbox())


@dataclass(frozen=True, slots=True)
class Child:
    """A worker in a process of its own, and its log."""

    process: ForkServerProcess
    log: Path

    def exit_code(self) -> int:
        """Wait until it has ended, and return the exit code, negative for a signal."""
        self.process.join(PATIENCE_SECONDS)
        assert self.process.exitcode is not None, f"the worker does not end: {self.log_text()}"
        return self.process.exitcode

    def log_text(self) -> str:
        return self.log.read_text()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.terminate()
        return self.exit_code()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def children(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(child) for child in children.read_text().split()]

    def kill_child(self, chance: random.Random) -> None:
        """Kill one of its child processes, chosen at random, as soon as there is one."""
        until(self.children)
        os.kill(chance.choice(self.children()), signal.SIGKILL)

    def is_stopped(self) -> bool:
        text = Path(f"/proc/{self.pid}/stat").read_text()
        return text.rsplit(")", 1)[1].split()[0] == "T"


def new_inbox(dsn: str, **settings: Any) -> DurableInbox:
    defaults: dict[str, Any] = {"retry": QUICK, "lease": LEASE}
    return DurableInbox("billing", dsn=dsn, **(defaults | settings))


def write_effect(conn: psycopg.Connection[Any], event: Event) -> None:
    conn.execute(
        "INSERT INTO effect (event_id, key, n) VALUES (%s, %s, %s)",
        (event.id, event.key, event.data["n"]),
    )


def finish(lab: Lab, durable: DurableInbox, workers: int = 1) -> None:
    """Run workers in threads until all jobs have ended."""
    with running_workers(durable, workers):
        until(lambda: lab.left() == 0)


@contextmanager
def running_workers(durable: DurableInbox, workers: int = 1) -> Iterator[Sequence[JobWorker]]:
    """Run workers in threads during the block; raise the first error that one of them raised."""
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


class SelfKill:
    """Sends a signal to its own process after the n-th time of a step: SIGKILL or SIGSTOP."""

    def __init__(self, step: str, times: int, number: signal.Signals) -> None:
        self._step = step
        self._left = times
        self._number = number

    def after(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._number)


def fork_server() -> ForkServerContext:
    """Return the server process from which workers are forked; start it if necessary."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # Python 3.11 starts it without sys.path
    try:
        ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def work_by_plan(dsn: str, plan: dict[str, Any], log: Path) -> None:
    """Work until SIGTERM; with `step` and `times` in the plan, the process ends itself after that step."""
    with log.open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    logging.basicConfig(level=logging.WARNING)
    self_kill = SelfKill(
        plan.get("step", ""), plan.get("times", 1), signal.Signals[plan.get("signal", "SIGKILL")]
    )
    install(self_kill)
    durable = new_inbox(dsn, lease=plan.get("lease", LEASE), **plan.get("settings", {}))

    @durable.handler(
        plan.get("kind", "Work"), max_attempts=plan.get("max_attempts"), together=plan.get("together", False)
    )
    def work(conn: psycopg.Connection[Any], event: Event) -> None:
        if plan.get("kills_at") == event.data["n"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if plan.get("seconds"):
            time.sleep(plan["seconds"])
        if plan.get("failing") and event.attempt == 1 and event.data["n"] % 5 == 0:
            raise RuntimeError("fails once")
        if not plan.get("silent"):
            write_effect(conn, event)
        self_kill.after("effect")

    if plan.get("without_renewal"):
        replace_method(LeaseRenewal, "_extend", lambda self, conn: None)
    if plan.get("receive"):
        durable.receive()
    elif plan.get("fleet"):
        durable.run(workers=plan["fleet"])
    else:
        durable.work()


def install(self_kill: SelfKill) -> None:
    """Report each step of worker and receiver to `self_kill`."""
    ending: list[object] = []  # only a commit that ends a job counts

    def finished(self: object, result: object) -> None:
        ending.append(self)
        self_kill.after("finish")

    def committed(self: object, result: object) -> None:
        if ending:
            ending.clear()
            self_kill.after("commit")

    def taken(self: object, result: object) -> None:
        if result:
            self_kill.after("take")

    call_after(JobQueue, "finish", finished)
    call_after(JobQueue, "fail", lambda self, result: self_kill.after("fail"))
    call_after(WorkerSession, "commit", committed)
    call_after(JobWorker, "_take", taken)
    call_after(JobWorker, "_flush_handled", lambda self, result: self_kill.after("flush"))
    call_after(JobWriter, "enqueue", lambda self, result: self_kill.after("enqueue"))
    call_after(ConsumerSession, "commit", lambda self, result: self_kill.after("received"))
    call_after(GroupMember, "store", lambda self, result: self_kill.after("store"))


def call_after(owner: type, name: str, then: Callable[[object, object], None]) -> None:
    """Call `then` after each call of a method, with the object and the result."""
    method = getattr(owner, name)

    def call(self: object, *arguments: object) -> object:
        result = method(self, *arguments)
        then(self, result)
        return result

    replace_method(owner, name, call)


def replace_method(owner: type, name: str, function: Callable[..., object]) -> None:
    setattr(owner, name, function)
