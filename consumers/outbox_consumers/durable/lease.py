"""Renew a worker's lease, release the jobs of dead workers, and listen for new jobs.

All of it runs in one thread with its own database session, so that a busy handler or its transaction
cannot delay it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql as composing

from outbox_consumers import sql
from outbox_consumers.durable.counters import WorkCounters
from outbox_consumers.durable.in_progress import JobsInProgress, RunningJob
from outbox_consumers.durable.queue import PURGE_AT_ONCE, JobQueue
from outbox_consumers.durable.session import settings_of
from outbox_consumers.handlers.session import Database
from outbox_consumers.inbox import job_tables

log = logging.getLogger("outbox_consumers")

SLOW_JOB_SECONDS: Final = 1.0  # after which the jobs waiting behind a running one are given back
RETRY_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 1.0  # between checks for workers whose lease has expired
LONGEST_DELAY: Final = 60.0  # before a job that exceeded its time limit is tried again
EXIT_OVERDUE: Final = 70


@dataclass(frozen=True, slots=True)
class Lease:
    """The duration of a lease in seconds, and what to do about a handler that does not return.

    With `kill` the process ends itself if a handler has not returned `grace` seconds after its time limit.
    """

    seconds: float = 30.0
    grace: float = 10.0
    kill: bool = False

    @property
    def interval(self) -> float:
        """Seconds between renewals."""
        return self.seconds / 3


class LeaseRenewal:
    """The second thread of a worker, from `start` to `stop`."""

    def __init__(
        self,
        database: Database,
        lease: Lease,
        jobs: JobsInProgress,
        queue: JobQueue,
        counters: WorkCounters,
        clock: Callable[[], float],
    ) -> None:
        table, self._consumer = database.table, database.consumer
        self._database = database
        self._lease = lease
        self._jobs = jobs
        self._queue = queue
        self._counters = counters
        self._clock = clock
        self._heartbeat = job_tables.compose("durable_heartbeat", table)
        self._remove_expired = job_tables.compose("durable_remove_expired_workers", table)
        self._requeue = job_tables.compose("durable_requeue", table)
        self._channel = job_tables.channel(table, self._consumer)
        self._thread = threading.Thread(target=self._run, name="outbox lease", daemon=True)
        self._stopped = threading.Event()
        self._woken = threading.Event()
        self._worker: int | None = None
        self._worker_conn: psycopg.Connection[Any] | None = None  # the worker's, for cancelling
        self._expires_at = 0.0
        self._extend_at = self._check_at = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the lease is no longer renewed."""
        self._stopped.set()
        self._thread.join(2 * RETRY_SECONDS + 10)

    def set_worker(self, worker: int | None, session: psycopg.Connection[Any] | None = None) -> None:
        """Renew the lease of this worker from now on, just registered on `session`; None: renew none."""
        self._expires_at = self._clock() + self._lease.seconds
        self._worker, self._worker_conn = worker, session

    def is_held(self) -> bool:
        """Return whether the lease is held, as far as known here; the database decides."""
        return self._worker is not None and self._clock() < self._expires_at

    def seconds_left(self) -> float:
        """Return the seconds until the lease expires, as far as known here; 0 without a lease."""
        return max(0.0, self._expires_at - self._clock()) if self._worker is not None else 0.0

    def job_seconds(self) -> float:
        """Return the seconds since the running handler was called; 0 if none is running."""
        return self._jobs.running_seconds(self._clock())

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for a notification of new jobs, for released jobs, or for `wake`."""
        self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """End a `wait`. May be called from a signal handler."""
        self._woken.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with _connect(self._database) as conn:
                    conn.execute(sql.get("set_lease_session"))
                    conn.execute(composing.SQL("LISTEN {}").format(composing.Identifier(self._channel)))
                    self._woken.set()  # jobs may have been added before LISTEN
                    self._run_session(conn)
            except psycopg.Error as error:
                if not self._stopped.is_set():
                    log.warning(
                        "lost the database session that renews the lease: %s", " ".join(str(error).split())
                    )
                self._stopped.wait(RETRY_SECONDS)
            except Exception:
                log.exception("renewing the lease failed; trying again")
                self._stopped.wait(RETRY_SECONDS)

    def _run_session(self, conn: psycopg.Connection[Any]) -> None:
        tick = min(0.2, self._lease.interval / 2)
        while not self._stopped.is_set():
            for _ in conn.notifies(timeout=tick, stop_after=1):
                self._woken.set()
            self._check_running(conn)
            if self._clock() >= self._extend_at:
                self._extend(conn)
                self._extend_at = self._clock() + self._lease.interval
            if self._clock() >= self._check_at:
                self._clean_up(conn)
                self._check_at = self._clock() + CHECK_SECONDS

    def _extend(self, conn: psycopg.Connection[Any]) -> None:
        """Extend the lease, unless the worker was removed."""
        worker, begun = self._worker, self._clock()
        if worker is not None:
            values = {"worker": worker, "lease": self._lease.seconds}
            alive = conn.execute(self._heartbeat, values).rowcount == 1
            if worker == self._worker:
                if alive:
                    self._expires_at = begun + self._lease.seconds
                else:
                    log.warning("the lease of worker %d has expired and others have its jobs now", worker)
                    self.set_worker(None)

    def _clean_up(self, conn: psycopg.Connection[Any]) -> None:
        """Release the jobs of dead workers, and remove done jobs that were kept long enough."""
        dead = conn.execute(self._remove_expired, {"consumer": self._consumer}).fetchall()
        rescued = conn.execute(self._requeue, {"consumer": self._consumer}, prepare=False).rowcount
        while self._queue.purge(conn) == PURGE_AT_ONCE and not self._stopped.is_set():
            pass
        for name, ended in dead:
            log.warning(
                "the lease of worker %s has expired%s", name, ", its session was terminated" if ended else ""
            )
        if rescued:
            log.warning("%d jobs of dead workers are ready again", rescued)
            self._counters.rescued += rescued
            self._woken.set()

    def _check_running(self, conn: psycopg.Connection[Any]) -> None:
        """Give back the jobs around a slow one, and end a job that exceeds its time limit."""
        worker, now = self._worker, self._clock()
        if worker is None:
            return
        try:
            if self._jobs.is_slow(now, SLOW_JOB_SECONDS):
                self._release_others(conn, worker)
            running = self._jobs.overdue(now)
            if running is not None:
                self._end_overdue(conn, worker, running)
        except psycopg.Error:
            self.set_worker(
                None
            )  # jobs taken out here but not given back become ready when the lease expires
            raise

    def _release_others(self, conn: psycopg.Connection[Any], worker: int) -> None:
        """Give back the waiting jobs and end the handled ones."""
        waiting, handled = self._jobs.take_waiting(), self._jobs.take_handled()
        with conn.transaction():
            if waiting:
                self._counters.given_back += self._queue.give_back(conn, worker, waiting)
            if handled:
                self._counters.done += self._queue.finish(conn, worker, handled)

    def _end_overdue(self, conn: psycopg.Connection[Any], worker: int, running: RunningJob) -> None:
        """Take the job away from a handler that exceeds its time limit; its effects will not be committed."""
        job, limit = running.job, running.limit or 0
        late = self._clock() - running.since - limit
        if self._lease.kill and late > self._lease.grace:
            log.error("the handler of %r has not returned; ending the process", job.event)
            os._exit(EXIT_OVERDUE)
        attempts = job.attempts + 1
        text = f"took longer than {limit:g} s"
        with conn.transaction():
            if attempts >= running.max_attempts:
                taken = self._queue.mark_dead(conn, worker, job, attempts, text)
            else:
                delay = min(limit, LONGEST_DELAY)
                taken = self._queue.fail(conn, worker, job, attempts, text, delay)
        if taken:
            log.error("%r %s, attempt %d", job.event, text, attempts)
            self._counters.timeouts += 1
            session = self._worker_conn
            if session is not None and not session.closed:
                session.cancel_safe(timeout=5)


def _connect(database: Database) -> psycopg.Connection[Any]:
    settings = settings_of(database.dsn, database, "outbox lease")
    return psycopg.connect("", autocommit=True, **settings)
