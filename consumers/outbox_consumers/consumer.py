"""The consumer application: its settings, its handlers, and how it runs."""

from __future__ import annotations

import functools
import gc
import logging
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

import psycopg

from outbox_connectors.definition import Secret
from outbox_connectors.signals import Stopping
from outbox_consumers.errors import UsageError
from outbox_consumers.event import Event
from outbox_consumers.failures.dead_letter import DeadLetterLimit, DeadLetterLimiter, DeadLetters
from outbox_consumers.failures.dead_letter_topic import DeadLetterTopic
from outbox_consumers.failures.parked import Parked
from outbox_consumers.failures.process_crashes import ProcessCrashes
from outbox_consumers.handlers.retry import RetryStrategy
from outbox_consumers.handlers.routes import (
    AsyncBatchHandler,
    AsyncHandler,
    BatchHandler,
    CursorHandler,
    Handler,
    OnFailure,
    Route,
    Routes,
    Stale,
    Unknown,
    Untyped,
    Upcast,
)
from outbox_consumers.handlers.session import ConsumerSession, Database, located
from outbox_consumers.identity import ID_HEADER, TYPE_HEADER, IdentityRules
from outbox_consumers.inbox import retention
from outbox_consumers.inbox.claims import DEFAULT_TABLE, Inbox
from outbox_consumers.loop import trial
from outbox_consumers.loop.batches import Batches
from outbox_consumers.loop.event_reader import EventReader
from outbox_consumers.loop.group_member import GroupMember
from outbox_consumers.loop.kafka_settings import Start, checked, connection_settings, poll_budget
from outbox_consumers.loop.loop import Loop, LoopSettings
from outbox_consumers.loop.outage import Clock
from outbox_consumers.loop.topic_retention import retentions
from outbox_consumers.loop.transaction import EventTransaction, Stores
from outbox_consumers.loop.trial import Result
from outbox_consumers.loop.unpark import Unparker
from outbox_consumers.loop.unscoped_ids import ScopedClaims, checked_topics
from outbox_consumers.processes.counters import ConsumerCounters
from outbox_consumers.processes.fleet import Address, Fleet, Role, fill
from outbox_consumers.processes.health import Health, MonitoredConsumer, ProcessState

log = logging.getLogger("outbox_consumers")

STOP_SECONDS: Final = 30.0  # for workers to finish their current work

H = TypeVar("H", bound=Handler | AsyncHandler | CursorHandler)
B = TypeVar("B", bound=BatchHandler | AsyncBatchHandler)
U = TypeVar("U", bound=Upcast)


class Consumer:
    """A consumer application: the effects of each event happen once, in your PostgreSQL.

    The name is the scope of deduplication: an event that a consumer of this name has handled is a duplicate
    for all others of the name, also in other consumer groups. Run up to one process per partition.

        app = Consumer("billing", kafka={"bootstrap.servers": "..."}, dsn="...", topics=["orders"])

        @app.handler("OrderPlaced")
        def placed(conn, event):
            conn.execute("INSERT INTO invoice VALUES (%s, %s)", (event.key, event.data["total"]))

        app.run()

    A handler that returns is done. One that raises is retried later, and the event's partition waits while
    the others continue. `Reject` makes the event a dead letter at once, `Skip` ends it without an error.

    A dead letter is an event that is not tried any more. It is stored in a table next to the inbox, with a
    copy on the topic that `dead_letter` names, if any. `unknown` says what happens to event types that have
    no handler, `stale` to events whose ids are from before the window that the inbox remembers.

    `type_header` and `id_header` name the headers that carry an event's type and id. `untyped` says what
    happens to records that have no type: "stop" ends the consumer as long as no record since its start has
    had one, and afterwards treats them as `unknown` says.

    An id that is no UUID is unique only within its source, which is its topic unless `id_scope` names
    another: one name for the ids of all topics, or of some, {"orders": "shop", "payments": "shop"}.
    `unscoped_ids` names the topics that were consumed by a version without scopes, so that their events are
    recognised; () for none. Without it the consumer stops at such an id.

    Times are in seconds. `lock_timeout` limits the wait for another transaction's claim or row,
    `idle_timeout` how long a frozen process may keep its transaction open. `commit_timeout` applies with
    group.protocol=consumer only: a member whose offset commits Kafka does not accept for that long fetches
    no more records; set it to the group's session time-out on the broker (45 by default).

    `pooler` is for a dsn of a pooler that assigns a server connection for one transaction, such as PgBouncer
    with pool_mode=transaction: no setting is then left in the session. An event that crashes its process is
    not found there, since that needs a lock that the session holds.

    `kafka` takes librdkafka properties; those that would lose events are refused. `dsn` is a libpq
    connection string; empty means libpq's PG* environment variables. `start` says where a new group begins.
    """

    def __init__(
        self,
        name: str,
        *,
        kafka: Mapping[str, Any],
        topics: Sequence[str],
        dsn: str = "",
        retry: RetryStrategy | None = None,
        batch_size: int = 1000,
        table: str = DEFAULT_TABLE,
        start: Start = "earliest",
        unknown: Unknown = "skip",
        stale: Stale = "dead_letter",
        untyped: Untyped = "stop",
        type_header: str = TYPE_HEADER,
        id_header: str = ID_HEADER,
        id_scope: str | Mapping[str, str] | None = None,
        unscoped_ids: Sequence[str] | None = None,
        dead_letter: str | None = None,
        dead_letter_limit: DeadLetterLimit | None = None,
        lock_timeout: float = 10.0,
        idle_timeout: float = 60.0,
        commit_timeout: float = 45.0,
        pooler: bool = False,
    ) -> None:
        if not name or "\0" in name:
            raise UsageError("a consumer needs a name", remedy='write Consumer("billing", ...)')
        if isinstance(topics, str) or not topics:
            raise UsageError("topics is a list of topic names", where=f"Consumer({name!r})")
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: a batch holds at least one event")
        self.name = name
        self.topics = tuple(topics)
        self.counters = ConsumerCounters()
        self._settings = checked(kafka, name=name, batch_size=batch_size, start=start)
        self._database = Database(Secret(dsn), name, table, lock_timeout, idle_timeout, pooler=pooler)
        self._loop_settings = LoopSettings(batch_size, poll_budget(self._settings), retry or RetryStrategy())
        self._routes = Routes(unknown, stale, untyped)
        self._naming = IdentityRules(id_header, type_header, {} if id_scope is None else id_scope)
        self._unscoped_ids = checked_topics(unscoped_ids)
        self._commit_timeout = commit_timeout
        self._limit = dead_letter_limit or DeadLetterLimit()
        self._dead_letter_topic = dead_letter
        self._clock = Clock(time.monotonic, time.sleep, random.random)
        self._stop = threading.Event()
        self._state = ProcessState()

    def __repr__(self) -> str:
        return f"<Consumer {self.name} of {', '.join(self.topics)}>"

    def handler(
        self,
        event_type: str,
        *,
        on_failure: OnFailure = "block",
        pipeline: bool = True,
        cursor: bool = False,
        version: int | None = None,
    ) -> Callable[[H], H]:
        """Register a function `(conn, event)` for an event type.

        What the function writes through `conn` is committed in the same transaction as the claim of the
        event. In a batch, handlers run in psycopg's pipeline mode, where the statements of many events share
        a round trip and an error may be raised at a later statement; the batch is then rolled back and each
        event handled alone, without pipeline mode. `pipeline=False` turns it off.

        With `cursor=True` the function is `(cursor, event)`, and all events share one cursor. That is much
        cheaper than `conn.execute`, which creates a cursor for each statement. The next statement replaces
        the result of the one before.

        An `async def` handler gets an AsyncConnection in the same transaction. It runs to its end in the
        consumer's thread, without pipeline mode: it may await several things at once, but the next event
        waits for it.

        `on_failure` says what happens to an event that fails: "block" holds its partition and retries for
        ever; "park" lets only the events of its key wait, in a table, and retries from there. Once the
        attempts of the RetryStrategy are used up (5 if it sets none), "dead_letter" makes the event a dead
        letter and "stop" ends the consumer.

        `version` is the version of `event.data` that the handler expects; older ones are upcast, others
        rejected. Without it the handler gets the result of all upcasts.
        """

        def register(function: H) -> H:
            route = Route(event_type, function, 0, pipeline, on_failure, cursor, version)
            self._routes.add(route)
            return function

        return register

    def batch_handler(
        self,
        event_type: str,
        *,
        max_size: int = 1000,
        on_failure: OnFailure = "block",
        version: int | None = None,
    ) -> Callable[[B], B]:
        """Register a function `(conn, events)` that gets up to `max_size` events of a type in one call.

        Five to ten times faster than one call per event if it writes them with one statement. When it
        raises, it is called again with fewer events, finally with each one alone. `on_failure` and `version`
        are those of `handler`.
        """

        def register(function: B) -> B:
            if max_size < 1:
                raise UsageError(f"max_size={max_size}: a batch holds at least one event")
            route = Route(event_type, function, max_size, False, on_failure, version=version)
            self._routes.add(route)
            return function

        return register

    def upcast(self, event_type: str, *, from_version: int) -> Callable[[U], U]:
        """Register a function `(data)` that turns a payload of `from_version` into one of the next.

        Upcasts form a chain: an event of version 1 goes through those from 1, 2, ... The payload of the
        record does not change.
        """

        def register(function: U) -> U:
            self._routes.upcasts.add(event_type, from_version, function)
            return function

        return register

    def run(self, workers: int = 1, listen: Address | None = None) -> None:
        """Consume until SIGTERM, SIGINT or `stop`; finish the current transaction, then leave the group.

        With several `workers`, each is a child process, which is restarted when it ends; more of them than
        partitions stay idle. With `listen` (host and port) health and metrics are served on that port,
        those of further workers on the following ports.

        Raises Unreachable, InboxUnusable, ReadOnlyDatabase or Failed when it cannot start, FencedConsumer
        when Kafka removes this member permanently. Waits for a database that becomes unreachable later.
        """
        if not self._routes.by_type:
            raise UsageError(f"{self!r} has no handlers", remedy='add one with @app.handler("OrderPlaced")')
        if workers < 1:
            raise UsageError(f"workers={workers}: at least one worker is needed")
        self._stop.clear()
        if workers == 1:
            fill(self.role(), self.name, listen)
            return
        roles = {f"{self.name}-{number}": self.role() for number in range(1, workers + 1)}
        Fleet(roles, lambda name: None, STOP_SECONDS, listen).run(self._stop)

    def role(self) -> Role:
        """Return what each process of this consumer runs and serves."""
        return Role(lambda name: self._consume(), self.stop, self.watched)

    def _consume(self) -> None:
        database = located(self._database)
        crashes = ProcessCrashes(
            self.name, database.table, uuid.uuid4(), self._loop_settings.batch_size, disabled=database.pooler
        )
        session = ConsumerSession(database, crashes.join)
        session.open()
        source = self._source()
        loop = self._loop(source, session, crashes, database)
        with Stopping(self.stop), _rare_collections(20 * self._loop_settings.batch_size):
            try:
                source.open()
            except BaseException:
                with suppress(psycopg.Error):
                    crashes.leave(session.connection())
                session.close()
                raise
            log.info("%s: consuming %s", self.name, ", ".join(self.topics))
            loop.run(self._stop.is_set)
        log.info("%s: stopped, %s", self.name, self.counters)

    @contextmanager
    def batches(self, *, max_size: int = 1000, wait: float = 0.0) -> Iterator[Batches]:
        """Consume in a loop of your own: every event of the topics, of any type, without handlers.

            with app.batches(max_size=500) as batches:
                for batch in batches:
                    with batch.transaction() as (conn, events):
                        ...

        `wait` is how many seconds to wait for a batch to become full. The loop ends after `stop`. Installs
        no signal handlers. Raises what `run` raises.
        """
        self._stop.clear()
        database = located(self._database)
        session = ConsumerSession(database)
        source, reader = self._source(), self._reader(self._routes)
        try:
            session.open()
            source.open()
            yield Batches(
                source,
                session,
                self._claims(database, reader),
                reader,
                self.counters,
                max_size=max_size,
                wait=wait,
                clock=self._clock.now,
                stopping=self._stop.is_set,
            )
        finally:
            session.rollback()
            source.close()
            session.close()

    def _source(self) -> GroupMember:
        return GroupMember(self._settings, self.topics, self.counters, self._commit_timeout, self._clock.now)

    def _reader(self, routes: Routes) -> EventReader:
        return EventReader(routes, self._naming, self.counters)

    def _claims(self, database: Database, reader: EventReader) -> ScopedClaims:
        inbox = Inbox(self.name, database.table, database.begin)
        return ScopedClaims(inbox, self.name, database.table, self._unscoped_ids, reader.seen)

    def _loop(
        self, source: GroupMember, session: ConsumerSession, crashes: ProcessCrashes, database: Database
    ) -> Loop:
        name, table = self.name, database.table
        copies = None
        if self._dead_letter_topic:
            copies = DeadLetterTopic(
                connection_settings(self._settings), self._dead_letter_topic, str(self._settings["group.id"])
            )
        letters = DeadLetters(name, table, DeadLetterLimiter(self._limit), copies, self.counters)
        window = functools.partial(retention.window_start, table=table)
        counters, clock = self.counters, self._clock
        routes = self._traced_routes()
        reader = self._reader(routes)
        stores = Stores(self._claims(database, reader), letters, Parked(name, table), window)
        transaction = EventTransaction(session, stores, reader, counters)
        unparker = Unparker(session, stores, routes, counters, self._loop_settings.retry, clock.random)
        return Loop(
            source,
            session,
            reader,
            transaction,
            unparker,
            crashes,
            self._loop_settings,
            counters,
            self._state,
            clock,
        )

    def _traced_routes(self) -> Routes:
        """Run the handlers in spans if the application has set up OpenTelemetry."""
        if "opentelemetry.trace" not in sys.modules:
            return self._routes
        from outbox_consumers.handlers import tracing  # needs an extra; imported only where it is used

        wrap = tracing.around(self.name, str(self._settings["group.id"]))
        return self._routes if wrap is None else self._routes.wrapped(wrap)

    def test(self, events: Iterable[Event], conn: psycopg.Connection[Any]) -> Result:
        """Run events through the handlers on a test's connection: no Kafka, no commit, no waiting.

        Needs an open transaction and the inbox table. Each event gets one attempt in a savepoint, so the
        test sees the effects and rolls them back. Asynchronous handlers need `testing.connection`.
        """
        return trial.run(self._routes, self.name, self._database.table, conn, events)

    def health(self) -> Health:
        """Return whether `run` is polling Kafka and has its database. May be called from any thread."""
        return self.watched.health()

    @property
    def watched(self) -> MonitoredConsumer:
        """What `health.serving` serves about this consumer."""
        limit = 3 * self._loop_settings.budget
        return MonitoredConsumer(self.name, self.counters, self._state, limit, self._clock.now)

    def window(self, keep: timedelta | None = None) -> timedelta | None:
        """Return how long the inbox must remember ids, from the retention of the topics; None: for ever.

        Raises RefusedWindow for a `keep` that is shorter, Unreachable if no broker answers.
        """
        return retention.window_of(retentions(self._settings, self.topics), keep)

    @property
    def dsn(self) -> Secret:
        """The connection string of the consumer's database."""
        return self._database.dsn

    @property
    def table(self) -> str:
        """The name of the inbox table."""
        return self._database.table

    def stop(self) -> None:
        """Ask `run` to stop. May be called from any thread and from a signal handler."""
        self._stop.set()


@contextmanager
def _rare_collections(objects: int) -> Iterator[None]:
    """Run Python's garbage collector less often inside the block.

    A batch holds about ten small objects per event. With the default threshold of 700 the collector visits
    them several times per batch and finds nothing: reading headers costs 2.1 instead of 0.9 us (measured).
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(max(objects, before[0]), *before[1:])
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        gc.set_threshold(*before)
