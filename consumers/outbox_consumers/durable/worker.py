"""One worker: lease jobs, call their handlers, commit the effects of a job together with its end.

    register --> take (lease) --> handler --wrote----------> end the job, COMMIT
                                     |     --wrote nothing--> end the job together with others
                                     |raised
                                     v
                              ROLLBACK, then state later or dead

Quick handlers registered with `together=True` share a transaction; if it fails, each is called again alone.

The statement that ends a job runs in the transaction of its effects and matches the job only with this
worker's id and fencing token: a worker that has lost its lease commits nothing, however late it resumes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import errors

from outbox_consumers.durable.counters import WorkCounters
from outbox_consumers.durable.in_progress import JobsInProgress, RunningJob
from outbox_consumers.durable.jobs import LeasedJob, missing
from outbox_consumers.durable.lease import Lease, LeaseRenewal
from outbox_consumers.durable.queue import JobQueue
from outbox_consumers.durable.session import LazyConnection, WorkerSession
from outbox_consumers.errors import ReadOnlyDatabase, Reject, Skip
from outbox_consumers.event import about
from outbox_consumers.failures.dead_letter import describe, storable
from outbox_consumers.handlers.retry import TRANSIENT, RetryStrategy, is_transient
from outbox_consumers.handlers.routes import Route, Routes
from outbox_consumers.handlers.session import Database, Status
from outbox_consumers.inbox import job_tables
from outbox_consumers.inbox.claims import cursor_of
from outbox_consumers.loop.outage import Clock

log = logging.getLogger("outbox_consumers")

POLL_SECONDS: Final = 1.0
UNKNOWN_SECONDS: Final = 30.0  # until a job without a handler becomes ready again
TAKE_SECONDS: Final = 0.5  # target duration of the jobs that are taken at once
QUICK_CALL_SECONDS: Final = 0.01  # a handler that takes longer gets a transaction of its own
GROUP_SECONDS: Final = 0.02  # maximum duration of a transaction that quick handlers share
MAX_TAKE: Final = 200
_DATABASE: Final = (psycopg.Error, ReadOnlyDatabase)  # the latter during a failover


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings that all workers of one durable inbox share."""

    database: Database
    lease: Lease
    retry: RetryStrategy
    keep: float  # seconds for which done jobs are kept


class JobWorker:
    """One run of a worker, in the calling thread; a second thread renews its lease."""

    def __init__(
        self, name: str, settings: WorkerSettings, routes: Routes, counters: WorkCounters, time: Clock
    ) -> None:
        database = settings.database
        self._name = name
        self._settings = settings
        self._routes = routes
        self._counters = counters
        self._time = time
        self._session = WorkerSession(database)
        self._queue = JobQueue(database.consumer, database.table, settings.keep)
        self._jobs = JobsInProgress()
        self.renewal = LeaseRenewal(database, settings.lease, self._jobs, self._queue, counters, time.now)
        self._register_statement = job_tables.compose("durable_register", database.table)
        self._unregister_statement = job_tables.compose("durable_unregister", database.table)
        self._worker_id = self._former_id = 0  # the former one until it is removed
        self._registered_conn: LazyConnection | None = None
        self._group: list[LeasedJob] = []  # handled in the open, shared transaction
        self._handled_count = 0  # jobs without effects, handled since the last flush
        self._group_began = 0.0  # when the first job of the group, or without effects, was handled
        self._take_size = 1
        self._outages = 0

    def run(self, stopping: Callable[[], bool]) -> None:
        """Work until `stopping` returns True; then finish the current job and give back the others.

        Raises Unreachable, ReadOnlyDatabase or InboxUnusable when it cannot begin. If the database becomes
        unreachable later, the worker waits for it.
        """
        self._session.open()
        self._ensure_registered()
        self.renewal.start()
        try:
            while not stopping():
                self._work_once(stopping)
        finally:
            try:
                self._unregister()
            finally:
                self.renewal.stop()
                self._session.close()

    def _work_once(self, stopping: Callable[[], bool]) -> None:
        """Take some jobs and handle them; wait if there are none."""
        try:
            self._ensure_registered()
            jobs = self._take()
        except _DATABASE as error:
            self._session.rollback()
            if not is_transient(error):
                raise
            self._wait_for_database(error)
            return
        self._outages = 0
        if not jobs:
            self.renewal.wait(POLL_SECONDS)
            return
        begun = self._time.now()
        self._jobs.add(jobs)
        while not stopping() and self.renewal.is_held() and (job := self._jobs.take_next()) is not None:
            self._handle(job)
        self._flush()
        self._give_back(self._jobs.take_waiting())
        self._adapt_take_size(len(jobs), self._time.now() - begun)

    def _ensure_registered(self) -> None:
        """Register unless this connection is registered and its lease is held."""
        conn = self._session.connection()
        if conn is self._registered_conn and self.renewal.is_held():
            return
        self._former_id, self._worker_id = self._worker_id or self._former_id, 0
        self.renewal.set_worker(None)
        values = {
            "consumer": self._settings.database.consumer,
            "name": self._name,
            "lease": self._settings.lease.seconds,
        }
        cursor = cursor_of(conn)
        try:
            if self._former_id:
                cursor.execute(self._unregister_statement, {"worker": self._former_id})
            found = cursor.execute(self._register_statement, values).fetchone()
        except errors.UndefinedTable:
            raise missing(self._settings.database.table) from None
        self._session.commit()
        assert found is not None
        self._worker_id, self._former_id, self._registered_conn = found[0], 0, conn
        self.renewal.set_worker(self._worker_id, conn)

    def _unregister(self) -> None:
        """Commit what was handled, give back the other jobs and unregister."""
        try:
            self._flush()
            self._give_back(self._jobs.take_waiting())
            if self._worker_id:
                self.renewal.set_worker(None)
                cursor_of(self._session.connection()).execute(
                    self._unregister_statement, {"worker": self._worker_id}
                )
                self._session.commit()
        except _DATABASE as error:
            log.warning("could not give back its jobs; others get them when the lease has expired: %s", error)
            self._session.rollback()

    def _take(self) -> list[LeasedJob]:
        conn = self._session.connection()
        self._queue.sort_new(conn)
        self._queue.activate_due(conn)
        jobs = self._queue.take(conn, self._worker_id, self._take_size)
        self._session.commit()
        self._counters.taken += len(jobs)
        return jobs

    def _handle(self, job: LeasedJob) -> None:
        """Handle one job and record its outcome."""
        route = self._routes.find(job.event.raw_type)
        if route is None:
            self._defer_unknown(job)
            return
        quick = route.seconds <= QUICK_CALL_SECONDS and not job.suspect
        if not (quick and route.together):
            self._flush_group()
        if not quick:
            self._flush_handled()
        if job.suspect:
            # A worker that held it died. If it dies again with this job alone, the job is the cause.
            self._give_back(self._jobs.take_waiting())
            self._take_size = 1
        if job.attempts >= route.max_attempts:
            self._flush_group()
            self._record_outcome(
                job, lambda conn: self._mark_dead(conn, job, job.attempts, "its worker died each time")
            )
        elif quick and route.together:
            self._handle_together(job, route)
        else:
            self._handle_alone(job, route)

    @contextmanager
    def _in_progress(self, job: LeasedJob, route: Route) -> Iterator[LazyConnection]:
        """Tell the other thread which job is running, and measure how long its handler takes."""
        conn, begun = self._session.connection(), self._time.now()
        self._jobs.begin(RunningJob(job, begun, route.timeout, route.max_attempts))
        try:
            yield conn
        finally:
            self._jobs.end()
            route.note_duration(self._time.now() - begun)

    def _call_handler(self, conn: LazyConnection, job: LeasedJob, route: Route) -> None:
        job.event._route = route
        route.call(conn, job.event)

    def _handle_together(self, job: LeasedJob, route: Route) -> None:
        """Call a quick handler in the shared transaction. If it fails, each handler is called again alone."""
        self._flush_handled()
        if not self._group:
            self._group_began = self._time.now()
        self._group.append(job)
        failed = True
        try:
            with self._in_progress(job, route) as conn, suppress(Skip):
                self._call_handler(conn, job, route)
            failed = self._session.status() == Status.INERROR
        except Exception as error:
            log.info("%r failed in a shared transaction: %s", job.event, describe(error))
        except BaseException:
            self._session.rollback()
            self._group, jobs = [], self._group
            self._give_back(jobs)
            raise
        if failed:
            self._redo_alone()
        elif self._time.now() - self._group_began > GROUP_SECONDS:
            self._flush_group()

    def _flush(self) -> None:
        """End and commit all handled jobs."""
        self._flush_group()
        self._flush_handled()

    def _flush_group(self) -> None:
        """End the jobs of the group and commit; if that fails, call each handler again alone."""
        if not self._group:
            return
        written = self._session.status() != Status.IDLE
        try:
            done = self._queue.finish(self._session.connection(), self._worker_id, self._group)
            if done == len(self._group) or not written:
                self._session.commit()
                self._group, jobs = [], self._group
                self._counters.done += done
                self._count_fenced(len(jobs) - done)
                return
        except Exception as error:
            log.info("ending %d jobs together failed: %s", len(self._group), describe(error))
        self._redo_alone()

    def _flush_handled(self) -> None:
        """End the jobs whose handlers wrote nothing; not inside the shared transaction."""
        jobs, self._handled_count = self._jobs.take_handled(), 0
        if not jobs:
            return
        try:
            done = self._queue.finish(self._session.connection(), self._worker_id, jobs)
            self._session.commit()
        except _DATABASE as error:
            self._session.rollback()
            log.warning("could not end %d jobs, they will be handled again: %s", len(jobs), error)
            self._give_back(jobs)
            return
        self._counters.done += done
        self._count_fenced(len(jobs) - done)

    def _add_handled(self, job: LeasedJob) -> None:
        now = self._time.now()
        if self._handled_count == 0:
            self._group_began = now
        self._handled_count += 1
        self._jobs.add_handled(job)
        if now - self._group_began > GROUP_SECONDS:
            self._flush_handled()

    def _redo_alone(self) -> None:
        """Roll back the group and handle its jobs one by one. Ending a committed job does nothing."""
        self._session.rollback()
        self._group, jobs = [], self._group
        for at, job in enumerate(jobs):
            route = self._routes.find(job.event.raw_type)
            if route is None or not self.renewal.is_held():
                self._give_back(jobs[at:])
                return
            self._handle_alone(job, route)

    def _handle_alone(self, job: LeasedJob, route: Route) -> None:
        """Call a handler in a transaction of its own, so that an error affects no other job."""
        try:
            with self._in_progress(job, route) as conn:
                try:
                    self._call_handler(conn, job, route)
                except Skip:
                    if self._session.status() == Status.INERROR:
                        self._session.rollback()
            status = self._session.status()
            if status == Status.INERROR:
                self._session.commit()  # raises SwallowedDatabaseError
            if status == Status.IDLE and route.seconds <= QUICK_CALL_SECONDS:
                self._add_handled(job)
            elif self._queue.finish(conn, self._worker_id, [job]):
                self._session.commit()
                self._counters.done += 1
            else:
                self._session.rollback()
                self._count_fenced(1)
        except Exception as error:
            self._session.rollback()
            self._record_failure(job, route, error)
        except BaseException:
            self._session.rollback()
            self._give_back([job])
            raise

    def _record_failure(self, job: LeasedJob, route: Route, error: Exception) -> None:
        """Schedule another attempt, or make the job dead.

        This resolves an unknown outcome of COMMIT as well: if the transaction was committed, the job is gone
        and these statements match no row.
        """
        if is_transient(error):
            self._counters.transient += 1
            log.warning("%r: %s; trying again soon", job.event, describe(error), extra=about(job.event))
            self._give_back([job], TRANSIENT.delay(1, self._time.random()))
            return
        self._counters.failed += 1
        attempts = job.attempts + 1
        text = storable(describe(error))
        if isinstance(error, Reject) or attempts >= route.max_attempts:
            self._record_outcome(job, lambda conn: self._mark_dead(conn, job, attempts, text))
            return
        delay = self._settings.retry.delay(attempts, self._time.random())
        log.error(
            "%r failed, attempt %d, again in %.1f s: %s", job.event, attempts, delay, text,
            exc_info=error if attempts == 1 else None, extra=about(job.event, attempts),
        )  # fmt: skip
        self._record_outcome(
            job, lambda conn: self._queue.fail(conn, self._worker_id, job, attempts, text, delay)
        )

    def _mark_dead(self, conn: LazyConnection, job: LeasedJob, attempts: int, text: str) -> bool:
        log.error("dead job %r, attempt %d: %s", job.event, attempts, text, extra=about(job.event, attempts))
        dead = self._queue.mark_dead(conn, self._worker_id, job, attempts, text)
        self._counters.dead += dead
        return dead

    def _record_outcome(self, job: LeasedJob, record: Callable[[LazyConnection], bool]) -> None:
        """Record a job's outcome in a transaction of its own. If the database fails, its lease expires."""
        try:
            still_held = record(self._session.connection())
            self._session.commit()
        except _DATABASE as error:
            self._session.rollback()
            self._registered_conn = None  # register again, so that the jobs of this registration are released
            log.warning("%r stays leased until the lease expires: %s", job.event, error)
            return
        if not still_held:
            self._count_fenced(1)

    def _defer_unknown(self, job: LeasedJob) -> None:
        """Give back a job whose type has no handler here: during a rollout other workers may have one."""
        if not self._counters.unknown:
            log.warning("no handler for %r here; giving back such jobs for other workers", job.event)
        self._counters.unknown += 1
        self._give_back([job], UNKNOWN_SECONDS)

    def _give_back(self, jobs: Sequence[LeasedJob], delay: float = 0) -> None:
        if not jobs or not self._worker_id:
            return
        try:
            given = self._queue.give_back(self._session.connection(), self._worker_id, jobs, delay)
            self._session.commit()
        except _DATABASE as error:
            self._session.rollback()
            self._registered_conn = None
            log.warning("%d jobs stay leased until the lease expires: %s", len(jobs), error)
            return
        self._counters.given_back += given

    def _count_fenced(self, jobs: int) -> None:
        if jobs:
            log.warning("the lease of %d jobs was lost; their effects were rolled back", jobs)
            self._counters.fenced += jobs

    def _adapt_take_size(self, jobs: int, seconds: float) -> None:
        """Adapt how many jobs to take at once, so that jobs do not wait long in a busy worker."""
        if seconds > TAKE_SECONDS:
            self._take_size = max(1, int(jobs * TAKE_SECONDS / (2 * seconds)))
        elif jobs >= self._take_size:
            self._take_size = min(MAX_TAKE, self._take_size * 2)

    def _wait_for_database(self, error: Exception) -> None:
        self._outages += 1
        delay = TRANSIENT.delay(self._outages, self._time.random())
        log.warning("no database connection, trying again in %.1f s: %s", delay, " ".join(str(error).split()))
        self.renewal.wait(delay)
