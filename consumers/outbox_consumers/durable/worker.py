"""One worker: take jobs, hand them to their handlers, commit effect and end of a job together.

    register --> take (lease) --> handler --wrote--> end of the job, COMMIT
                                     |     nothing--> end of the job, with its neighbours
                                     |raises
                                     v
                              ROLLBACK, then later / dead

Handlers that are quick and say so share a transaction; when it fails, each is called again alone.

The end of a job is a statement that finds it only under this worker's lease and token, in the
transaction of the effect: a worker that lost its lease, however late it wakes up, commits nothing.
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
from outbox_consumers.durable.in_progress import JobsInProgress, Running
from outbox_consumers.durable.jobs import Leased, missing
from outbox_consumers.durable.lease import Lease, LeaseRenewal
from outbox_consumers.durable.queue import Queue
from outbox_consumers.durable.routes import JobRoute, JobRoutes
from outbox_consumers.durable.session import LazyConnection, WorkerSession
from outbox_consumers.errors import ReadOnlyDatabase, Reject, Skip
from outbox_consumers.event import about
from outbox_consumers.failures.dead_letter import describe, storable
from outbox_consumers.handlers.retry import TRANSIENT, RetryStrategy, is_transient
from outbox_consumers.handlers.session import Database, Status
from outbox_consumers.inbox import job_tables
from outbox_consumers.inbox.claims import cursor_of
from outbox_consumers.loop.outage import Clock

log = logging.getLogger("outbox_consumers")

POLL_SECONDS: Final = 1.0
UNKNOWN_SECONDS: Final = 30.0  # until a job without a handler is looked at again
TURN_SECONDS: Final = 0.5  # what a worker takes at once is meant to be done after so long
SLOW_SECONDS: Final = 0.01  # a handler that takes longer has a transaction of its own
GROUP_SECONDS: Final = 0.02  # for which quick handlers share one
MOST: Final = 200
_DATABASE: Final = (psycopg.Error, ReadOnlyDatabase)  # the latter while another server takes over


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the workers of one durable inbox have in common."""

    database: Database
    lease: Lease
    retry: RetryStrategy
    keep: float  # seconds for which done jobs are kept


class JobWorker:
    """One run of a worker, in one thread beside that of its lease."""

    def __init__(
        self, name: str, settings: WorkerSettings, routes: JobRoutes, counters: WorkCounters, outside: Clock
    ) -> None:
        database = settings.database
        self._name = name
        self._settings = settings
        self._routes = routes
        self._counters = counters
        self._outside = outside
        self._session = WorkerSession(database)
        self._queue = Queue(database.consumer, database.table, settings.keep)
        self._hand = JobsInProgress()
        self.pulse = LeaseRenewal(database, settings.lease, self._hand, self._queue, counters, outside.now)
        self._register = job_tables.compose("durable_register", database.table)
        self._leave = job_tables.compose("durable_leave", database.table)
        self._worker = self._former = 0  # the latter until it is known to be removed
        self._registered: LazyConnection | None = None
        self._group: list[Leased] = []  # handled in the open transaction of quick handlers
        self._noted = 0  # how many were handled without a word since the last flush
        self._since = 0.0  # when the first of the group, or of those handled without a word, was
        self._size = 1
        self._outages = 0

    def run(self, stopping: Callable[[], bool]) -> None:
        """Work until `stopping` says so; finish the job at hand, hand back the others.

        Raises Unreachable, ReadOnlyDatabase or InboxUnusable when it cannot begin. A database that is
        lost later is waited for.
        """
        self._session.open()
        self._enter()
        self.pulse.start()
        try:
            while not stopping():
                self._turn(stopping)
        finally:
            try:
                self._go()
            finally:
                self.pulse.stop()
                self._session.close()

    def _turn(self, stopping: Callable[[], bool]) -> None:
        """Take some jobs and work them off; wait when there are none."""
        try:
            self._enter()
            jobs = self._take()
        except _DATABASE as error:
            self._session.rollback()
            if not is_transient(error):
                raise
            self._wait_for_database(error)
            return
        self._outages = 0
        if not jobs:
            self.pulse.wait(POLL_SECONDS)
            return
        begun = self._outside.now()
        self._hand.hold(jobs)
        while not stopping() and self.pulse.held() and (job := self._hand.next()) is not None:
            self._work(job)
        self._flush()
        self._give_back(self._hand.release())
        self._adapt(len(jobs), self._outside.now() - begun)

    def _enter(self) -> None:
        """Register, unless that is done and still holds for this connection."""
        conn = self._session.connection()
        if conn is self._registered and self.pulse.held():
            return
        self._former, self._worker = self._worker or self._former, 0
        self.pulse.keep(None)
        values = {
            "consumer": self._settings.database.consumer,
            "name": self._name,
            "lease": self._settings.lease.seconds,
        }
        cursor = cursor_of(conn)
        try:
            if self._former:
                cursor.execute(self._leave, {"worker": self._former})
            found = cursor.execute(self._register, values).fetchone()
        except errors.UndefinedTable:
            raise missing(self._settings.database.table) from None
        self._session.commit()
        assert found is not None
        self._worker, self._former, self._registered = found[0], 0, conn
        self.pulse.keep(self._worker, conn)

    def _go(self) -> None:
        """Hand back what is left and leave."""
        try:
            self._flush()
            self._give_back(self._hand.release())
            if self._worker:
                self.pulse.keep(None)
                cursor_of(self._session.connection()).execute(self._leave, {"worker": self._worker})
                self._session.commit()
        except _DATABASE as error:
            log.warning("could not hand back; others will rescue: %s", error)
            self._session.rollback()

    def _take(self) -> list[Leased]:
        conn = self._session.connection()
        self._queue.sort(conn)
        self._queue.wake(conn)
        jobs = self._queue.take(conn, self._worker, self._size)
        self._session.commit()
        self._counters.taken += len(jobs)
        return jobs

    def _work(self, job: Leased) -> None:
        """Handle one job and end it, whatever comes of it."""
        route = self._routes.find(job.event.raw_type)
        if route is None:
            self._leave_alone(job)
            return
        quick = route.seconds <= SLOW_SECONDS and not job.suspect
        if not (quick and route.together):
            self._flush_group()
        if not quick:
            self._flush_handled()
        if job.suspect:
            # It was in the hands of a worker that died. Alone, so that it is known who is to blame.
            self._give_back(self._hand.release())
            self._size = 1
        if job.attempts >= route.max_attempts:
            self._flush_group()
            self._settle(job, lambda conn: self._bury(conn, job, job.attempts, "its worker died each time"))
        elif quick and route.together:
            self._together(job, route)
        else:
            self._alone(job, route)

    @contextmanager
    def _at_work(self, job: Leased, route: JobRoute) -> Iterator[LazyConnection]:
        """Let the other thread know what is at work, and learn how long such jobs take."""
        conn, begun = self._session.connection(), self._outside.now()
        self._hand.begin(Running(job, begun, route.timeout, route.max_attempts))
        try:
            yield conn
        finally:
            self._hand.end()
            route.took(self._outside.now() - begun)

    def _together(self, job: Leased, route: JobRoute) -> None:
        """Call a quick handler in the transaction of others. When it fails, each is called again alone."""
        self._flush_handled()
        if not self._group:
            self._since = self._outside.now()
        self._group.append(job)
        failed = True
        try:
            with self._at_work(job, route) as conn, suppress(Skip):
                route.call(conn, job.event)
            failed = self._session.status() == Status.INERROR
        except Exception as error:
            log.info("%r failed among others: %s", job.event, describe(error))
        except BaseException:
            self._session.rollback()
            self._group, jobs = [], self._group
            self._give_back(jobs)
            raise
        if failed:
            self._redo()
        elif self._outside.now() - self._since > GROUP_SECONDS:
            self._flush_group()

    def _flush(self) -> None:
        """Commit everything that was handled."""
        self._flush_group()
        self._flush_handled()

    def _flush_group(self) -> None:
        """End the jobs of the group and commit; when that fails, call each handler again, alone."""
        if not self._group:
            return
        written = self._session.status() != Status.IDLE
        try:
            done = self._queue.finish(self._session.connection(), self._worker, self._group)
            if done == len(self._group) or not written:
                self._session.commit()
                self._group, jobs = [], self._group
                self._counters.done += done
                self._note_fenced(len(jobs) - done)
                return
        except Exception as error:
            log.info("ending %d jobs together failed: %s", len(self._group), describe(error))
        self._redo()

    def _flush_handled(self) -> None:
        """End jobs whose handlers wrote nothing; not inside the transaction of a group."""
        jobs, self._noted = self._hand.collect(), 0
        if not jobs:
            return
        try:
            done = self._queue.finish(self._session.connection(), self._worker, jobs)
            self._session.commit()
        except _DATABASE as error:
            self._session.rollback()
            log.warning("could not end %d jobs, they come again: %s", len(jobs), error)
            self._give_back(jobs)
            return
        self._counters.done += done
        self._note_fenced(len(jobs) - done)

    def _note_handled(self, job: Leased) -> None:
        now = self._outside.now()
        if self._noted == 0:
            self._since = now
        self._noted += 1
        self._hand.note(job)
        if now - self._since > GROUP_SECONDS:
            self._flush_handled()

    def _redo(self) -> None:
        """Undo the group and do its jobs one by one. If it was committed after all, nothing is found."""
        self._session.rollback()
        self._group, jobs = [], self._group
        for at, job in enumerate(jobs):
            route = self._routes.find(job.event.raw_type)
            if route is None or not self.pulse.held():
                self._give_back(jobs[at:])
                return
            self._alone(job, route)

    def _alone(self, job: Leased, route: JobRoute) -> None:
        """Call a handler in a transaction of its own, so that an error is its own."""
        try:
            with self._at_work(job, route) as conn:
                try:
                    route.call(conn, job.event)
                except Skip:
                    if self._session.status() == Status.INERROR:
                        self._session.rollback()
            status = self._session.status()
            if status == Status.INERROR:
                self._session.commit()  # which refuses and says why
            if status == Status.IDLE and route.seconds <= SLOW_SECONDS:
                self._note_handled(job)
            elif self._queue.finish(conn, self._worker, [job]):
                self._session.commit()
                self._counters.done += 1
            else:
                self._session.rollback()
                self._note_fenced(1)
        except Exception as error:
            self._session.rollback()
            self._failed(job, route, error)
        except BaseException:
            self._session.rollback()
            self._give_back([job])
            raise

    def _failed(self, job: Leased, route: JobRoute, error: Exception) -> None:
        """Let a job be tried again, or give it up. An unknown outcome of COMMIT is resolved here as well.

        If the transaction was committed after all, the job is gone and these statements find nothing.
        """
        if is_transient(error):
            self._counters.transient += 1
            log.warning("%r: %s; again soon", job.event, describe(error), extra=about(job.event))
            self._give_back([job], TRANSIENT.delay(1, self._outside.random()))
            return
        self._counters.failed += 1
        attempts = job.attempts + 1
        text = storable(describe(error))
        if isinstance(error, Reject) or attempts >= route.max_attempts:
            self._settle(job, lambda conn: self._bury(conn, job, attempts, text))
            return
        delay = self._settings.retry.delay(attempts, self._outside.random())
        log.error(
            "%r failed, attempt %d, again in %.1f s: %s", job.event, attempts, delay, text,
            exc_info=error if attempts == 1 else None, extra=about(job.event, attempts),
        )  # fmt: skip
        self._settle(job, lambda conn: self._queue.fail(conn, self._worker, job, attempts, text, delay))

    def _bury(self, conn: LazyConnection, job: Leased, attempts: int, text: str) -> bool:
        log.error("dead job %r, attempt %d: %s", job.event, attempts, text, extra=about(job.event, attempts))
        buried = self._queue.bury(conn, self._worker, job, attempts, text)
        self._counters.dead += buried
        return buried

    def _settle(self, job: Leased, say: Callable[[LazyConnection], bool]) -> None:
        """Say in a transaction of its own what becomes of a job; without a database its lease runs out."""
        try:
            mine = say(self._session.connection())
            self._session.commit()
        except _DATABASE as error:
            self._session.rollback()
            self._registered = None  # as somebody else, so that what this one holds is rescued
            log.warning("%r stays leased for now: %s", job.event, error)
            return
        if not mine:
            self._note_fenced(1)

    def _leave_alone(self, job: Leased) -> None:
        """Leave a job to workers that know its type, as there are while a new version is rolled out."""
        if not self._counters.unknown:
            log.warning("no handler for %r here; leaving such jobs to others", job.event)
        self._counters.unknown += 1
        self._give_back([job], UNKNOWN_SECONDS)

    def _give_back(self, jobs: Sequence[Leased], delay: float = 0) -> None:
        if not jobs or not self._worker:
            return
        try:
            given = self._queue.give_back(self._session.connection(), self._worker, jobs, delay)
            self._session.commit()
        except _DATABASE as error:
            self._session.rollback()
            self._registered = None
            log.warning("%d jobs stay leased for now: %s", len(jobs), error)
            return
        self._counters.given_back += given

    def _note_fenced(self, jobs: int) -> None:
        if jobs:
            log.warning("the lease of %d jobs was lost; nothing of them is committed here", jobs)
            self._counters.fenced += jobs

    def _adapt(self, jobs: int, seconds: float) -> None:
        """Take so much at once that it is done soon: others must not wait for what we only hold."""
        if seconds > TURN_SECONDS:
            self._size = max(1, int(jobs * TURN_SECONDS / (2 * seconds)))
        elif jobs >= self._size:
            self._size = min(MOST, self._size * 2)

    def _wait_for_database(self, error: Exception) -> None:
        self._outages += 1
        delay = TRANSIENT.delay(self._outages, self._outside.random())
        log.warning("no database connection, again in %.1f s: %s", delay, " ".join(str(error).split()))
        self.pulse.wait(delay)
