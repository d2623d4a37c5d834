"""The durable inbox: events are stored in a table as they arrive, and handled later by workers."""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import pq

from outbox_connectors.definition import Secret
from outbox_connectors.signals import Stopping
from outbox_consumers.consumer import Consumer
from outbox_consumers.durable import status
from outbox_consumers.durable.counters import WorkCounters
from outbox_consumers.durable.health import MonitoredWorker
from outbox_consumers.durable.jobs import Job, JobWriter, missing
from outbox_consumers.durable.lease import Lease, LeaseRenewal
from outbox_consumers.durable.session import WorkerSession
from outbox_consumers.durable.status import Count
from outbox_consumers.durable.worker import JobWorker, WorkerSettings
from outbox_consumers.errors import UsageError
from outbox_consumers.event import Event
from outbox_consumers.failures import dead_jobs
from outbox_consumers.failures.dead_jobs import DeadJob
from outbox_consumers.failures.dead_letter import DeadLetterFilter
from outbox_consumers.handlers.retry import RetryStrategy
from outbox_consumers.handlers.routes import (
    DEFAULT_JOB_ATTEMPTS,
    AsyncHandler,
    Handler,
    Route,
    Routes,
    Stale,
    Unknown,
    Untyped,
    Upcast,
)
from outbox_consumers.handlers.session import Database, located
from outbox_consumers.identity import ID_HEADER, TYPE_HEADER
from outbox_consumers.inbox import job_tables
from outbox_consumers.inbox.claims import DEFAULT_TABLE, claim, cursor_of
from outbox_consumers.loop.kafka_settings import Start
from outbox_consumers.loop.outage import Clock
from outbox_consumers.processes.fleet import Address, Fleet, Role

H = TypeVar("H", bound=Handler | AsyncHandler)
U = TypeVar("U", bound=Upcast)


class DurableInbox:
    """A job queue in your PostgreSQL, filled from Kafka, from your own transactions, or both.

        durable = DurableInbox("billing", kafka={"bootstrap.servers": "..."}, dsn="...", topics=["orders"])

        @durable.handler("OrderPlaced", max_attempts=5, timeout=600)
        def placed(conn, event):
            pdf = render(event.data)                  # takes minutes; no transaction is open yet
            conn.execute("INSERT INTO invoice VALUES (%s, %s)", (event.key, pdf))

        durable.run(workers=4)

    Events are claimed and written into the table in one transaction, and their offsets are stored when it is
    proven to be committed, so handlers never delay the consumer group. What a handler writes through `conn`
    is committed together with the end of its job, and only while the worker still holds the job: effects
    happen once. Effects elsewhere (HTTP, mail) may happen again after a crash: pass on `event.id`.

    Jobs with the same key are handled one at a time and in order; a failed job delays only its own key. A
    worker that has not renewed its lease for `lease` seconds is considered dead: its session is terminated
    and its jobs become ready for others. Finished jobs stay in the table for `keep` seconds.

    `put` notifies the workers with NOTIFY. PostgreSQL serializes commits that contain one, so on a busy
    database `notify=False` may be better: then a job waits up to a second.

    `untyped`, `type_header`, `id_header`, `id_scope` and `unscoped_ids` apply to events from Kafka, as for
    `Consumer`. Without `kafka` and `topics` the inbox is a job queue: see `put`.
    """

    def __init__(
        self,
        name: str,
        *,
        dsn: str = "",
        kafka: Mapping[str, Any] | None = None,
        topics: Sequence[str] = (),
        retry: RetryStrategy | None = None,
        table: str = DEFAULT_TABLE,
        batch_size: int = 1000,
        start: Start = "earliest",
        unknown: Unknown = "skip",
        stale: Stale = "dead_letter",
        untyped: Untyped = "stop",
        type_header: str = TYPE_HEADER,
        id_header: str = ID_HEADER,
        id_scope: str | Mapping[str, str] | None = None,
        unscoped_ids: Sequence[str] | None = None,
        lease: float = 30.0,
        keep: float = 0.0,
        notify: bool = True,
        grace: float = 30.0,
        lock_timeout: float = 10.0,
    ) -> None:
        if not name or "\0" in name:
            raise UsageError("a durable inbox needs a name", remedy='write DurableInbox("billing", ...)')
        if lease < 1 or grace < 0 or keep < 0:
            raise UsageError(
                f"lease={lease:g}, grace={grace:g}, keep={keep:g}: "
                "lease must be 1 or more, grace and keep 0 or more seconds"
            )
        self.name = name
        self.counters = WorkCounters()
        self._table = table
        self._retry = retry or RetryStrategy()
        self._lease = lease
        self._grace = grace
        self._keep = keep
        self._database = Database(Secret(dsn), name, table, lock_timeout, idle_timeout=0)
        self._routes = Routes()
        self._writer = JobWriter(name, table, notify)
        self._time = Clock(time.monotonic, time.sleep, random.random)
        self._stop = threading.Event()
        self._batch_size = batch_size
        self._renewal: LeaseRenewal | None = None  # of the worker that runs in this process
        self._receiver: Consumer | None = None
        if kafka is not None or topics:
            self._receiver = Consumer(
                name, kafka=kafka or {}, topics=topics, dsn=dsn, table=table, batch_size=batch_size,
                start=start, unknown=unknown, stale=stale, untyped=untyped, type_header=type_header,
                id_header=id_header, id_scope=id_scope, unscoped_ids=unscoped_ids, lock_timeout=lock_timeout,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"<DurableInbox {self.name}>"

    def handler(
        self,
        event_type: str,
        *,
        max_attempts: int | None = None,
        timeout: float | None = None,
        together: bool = False,
        version: int | None = None,
    ) -> Callable[[H], H]:
        """Register a function `(conn, event)` for an event type.

        If the function returns or raises `Skip`, the job is done. `Reject` makes it dead; after any other
        exception it is tried again after the delay of the RetryStrategy. After `max_attempts` (default: that
        of the RetryStrategy, else 10) the job is kept as dead and the next job of its key follows. `timeout`
        is the time limit of a call in seconds: after it the job is taken away from the call, its running
        statement is cancelled, and what it writes is never committed.

        `together=True` is for handlers that are always quick: as long as their calls take less than
        10 ms they share transactions of about 20 ms, which is about four times as fast. If one fails,
        the transaction is rolled back and each handler is called again alone.

        `version` is the version of `event.data` that the handler takes: older payloads are upcast to it,
        newer ones rejected. Without it the handler gets the result of all upcasts.
        """

        def register(function: H) -> H:
            given = self._retry.max_attempts if max_attempts is None else max_attempts
            attempts = DEFAULT_JOB_ATTEMPTS if given is None else given
            self._routes.add(
                Route(
                    event_type,
                    function,
                    version=version,
                    max_attempts=attempts,
                    timeout=timeout,
                    together=together,
                )
            )
            if self._receiver is not None:
                self._receive_type(self._receiver, event_type)
            return function

        return register

    def upcast(self, event_type: str, *, from_version: int) -> Callable[[U], U]:
        """Register a function `(data)` that turns a payload of `from_version` into one of the next.

        Upcasts form a chain: a payload of version 1 goes through those from 1, 2, ... The rows in the table
        are not changed.
        """

        def register(function: U) -> U:
            self._routes.upcasts.add(event_type, from_version, function)
            return function

        return register

    def _receive_type(self, receiver: Consumer, event_type: str) -> None:
        """Let the receiver store events of this type, too; one statement stores the events of all types."""
        known = receiver._routes.by_type
        if known:
            known[event_type.encode()] = next(iter(known.values()))
        else:
            receiver.batch_handler(event_type, max_size=self._batch_size)(self._received)

    def _received(self, conn: psycopg.Connection[Any], events: Sequence[Event]) -> None:
        self._writer.enqueue(conn, events)

    # -- Without Kafka ---------------------------------------------------------------------------------

    def put(
        self,
        conn: psycopg.Connection[Any],
        type: str,
        data: Any = None,
        *,
        key: str = "",
        id: UUID | None = None,
        priority: int = 0,
        run_at: datetime | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> bool:
        """Add a job to the queue in the caller's transaction; workers see it when that commits.

        Takes any connection to the inbox's database. Never commits the caller's transaction; on a connection
        in autocommit mode outside a transaction, the job gets one of its own. Returns False if a job with
        this `id` was added before. Arguments as for `Job`.
        """
        return bool(self.put_many(conn, [Job(type, data, key, id, priority, run_at, headers)]))

    def put_many(self, conn: psycopg.Connection[Any], jobs: Sequence[Job]) -> int:
        """Add jobs to the queue in order, with one statement; return how many were new. See `put`."""
        if conn.autocommit and conn.info.transaction_status == pq.TransactionStatus.IDLE:
            with conn.transaction():
                return self._put_many(conn, jobs)
        return self._put_many(conn, jobs)

    def _put_many(self, conn: psycopg.Connection[Any], jobs: Sequence[Job]) -> int:
        named = {job.id for job in jobs if job.id is not None}
        if named:
            fresh = claim(conn, self.name, named, table=self._table)
            jobs = [job for job in jobs if job.id is None or _claim_first(job.id, fresh)]
        if jobs:
            self._writer.enqueue(conn, [job.event() for job in jobs], jobs)
        return len(jobs)

    # -- Running ---------------------------------------------------------------------------------------

    def run(self, workers: int = 4, listen: Address | None = None) -> None:
        """Run a receiver (when there are topics) and `workers` workers, each in a process of its own.

        Runs until SIGTERM, SIGINT or `stop`; then each worker finishes its current job within `grace`
        seconds and gives back the others. A process that dies is restarted, and its jobs become ready
        for others at once. With `listen` (host and port) each process serves its health and metrics: the
        first worker on that port, the others on the following ports, the receiver on the last one. Raises
        Unreachable, ReadOnlyDatabase, InboxUnusable or Failed when it cannot begin.
        """
        if workers < 1:
            raise UsageError(f"workers={workers}: must be at least one")
        self._check()
        shown = MonitoredWorker(self.name, self.counters, lambda: self._renewal)
        worker = Role(self._run_worker, self.stop, shown)
        roles = {f"worker-{number}": worker for number in range(1, workers + 1)}
        if self._receiver is not None:
            roles["receiver"] = self._receiver.role()
        self._stop.clear()
        Fleet(roles, self._expire, self._grace, listen).run(self._stop)

    def work(self) -> None:
        """Run one worker in this thread until SIGTERM, SIGINT or `stop`. Raises the same errors as `run`."""
        self._check()
        self._stop.clear()
        with Stopping(self._stop.set):
            self._new_worker(f"{socket.gethostname()}/{os.getpid()}", kill=False).run(self._stop.is_set)

    def receive(self) -> None:
        """Run the receiver in this thread until SIGTERM, SIGINT or `stop`. Raises what Consumer.run does."""
        if self._receiver is None:
            raise UsageError(f"{self!r} has no topics", remedy="pass kafka={...} and topics=[...]")
        self._receiver.run()

    def stop(self) -> None:
        """Ask `run`, `work` and `receive` to end. May be called from any thread."""
        self._stop.set()
        if self._receiver is not None:
            self._receiver.stop()

    def _check(self) -> None:
        """Raise what `run` raises when it cannot begin, before any process is started."""
        if not self._routes.by_type:
            raise UsageError(f"{self!r} has no handlers", remedy='add one with @durable.handler("...")')
        session = WorkerSession(self._database)
        session.open()
        try:
            if job_tables.missing(session.connection(), self._table):
                raise missing(self._table)
        finally:
            session.close()

    def _run_worker(self, name: str) -> None:
        worker = self._new_worker(name, kill=True)
        self._renewal = worker.renewal
        worker.run(self._stop.is_set)

    def _new_worker(self, name: str, kill: bool) -> JobWorker:
        settings = WorkerSettings(
            located(self._database), Lease(self._lease, self._grace, kill), self._retry, self._keep
        )
        return JobWorker(name, settings, self._traced_routes(), self.counters, self._time)

    def _traced_routes(self) -> Routes:
        """Return the routes, with a span around each handler if the application uses OpenTelemetry."""
        if "opentelemetry.trace" not in sys.modules:
            return self._routes
        from outbox_consumers.handlers import tracing  # an extra, loaded only when in use

        wrap = tracing.around(self.name)
        return self._routes if wrap is None else self._routes.wrapped(wrap)

    def _expire(self, name: str) -> None:
        """End the lease of a dead process, so that its jobs become ready at once."""
        session = WorkerSession(self._database)
        try:
            values = {"consumer": self.name, "name": name}
            cursor_of(session.connection()).execute(
                job_tables.compose("durable_expire_lease", self._table), values
            )
            session.commit()
        finally:
            session.close()

    def window(self, keep: timedelta | None = None) -> timedelta | None:
        """Return how long the inbox must remember events, as Consumer.window does; without topics, `keep`."""
        return keep if self._receiver is None else self._receiver.window(keep)

    @property
    def dsn(self) -> Secret:
        """The connection string of the database."""
        return self._database.dsn

    @property
    def table(self) -> str:
        """The name of the inbox table."""
        return self._table

    # -- Administration --------------------------------------------------------------------------------

    def status(self, conn: psycopg.Connection[Any]) -> dict[str, Count]:
        """Count the jobs by state. Reads the whole table, so do not call it often."""
        return status.states(conn, self._table, self.name).get(self.name, {})

    def dead(
        self, conn: psycopg.Connection[Any], *, event_type: str | None = None, limit: int | None = None
    ) -> list[DeadJob]:
        """List dead jobs, the longest dead first."""
        wanted = DeadLetterFilter(consumer=self.name, event_type=event_type, limit=limit)
        return [dead_jobs.dead_job(found) for found in dead_jobs.find(conn, wanted, self._table)]

    def redrive(self, conn: psycopg.Connection[Any], jobs: Sequence[DeadJob]) -> int:
        """Make dead jobs ready again with all attempts, in the caller's transaction; return how many."""
        count = dead_jobs.redrive(conn, [job.position for job in jobs], self._table)
        self._writer.notify(conn)
        return count

    def discard(self, conn: psycopg.Connection[Any], jobs: Sequence[DeadJob]) -> int:
        """Delete dead jobs in the caller's transaction. Their ids stay claimed."""
        return dead_jobs.discard(conn, [job.position for job in jobs], self._table)

    def mend(self, conn: psycopg.Connection[Any]) -> int:
        """Repair queues without a head, and return how many there were.

        Only deleting or changing rows by hand makes it necessary. Reads all waiting rows.
        """
        count = cursor_of(conn).execute(
            job_tables.compose("durable_repair_queues", self._table), {"consumer": self.name}, prepare=False
        )
        self._writer.notify(conn)
        return count.rowcount


def _claim_first(id: UUID, fresh: set[UUID]) -> bool:
    """Return whether an id is in `fresh`, and remove it, so that only the first job with it is new."""
    if id not in fresh:
        return False
    fresh.discard(id)
    return True
