"""The application: handlers, where events come from, where effects go."""

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
)
from outbox_consumers.handlers.session import ConsumerSession, Database, located
from outbox_consumers.handlers.upcasts import Upcast
from outbox_consumers.identity import ID_HEADER, TYPE_HEADER, IdentityRules
from outbox_consumers.inbox import retention
from outbox_consumers.inbox.claims import DEFAULT_TABLE, Inbox
from outbox_consumers.loop import trial
from outbox_consumers.loop.batches import Batches
from outbox_consumers.loop.event_reader import EventReader
from outbox_consumers.loop.group_member import GroupMember
from outbox_consumers.loop.kafka_settings import Start, checked, poll_budget
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

DRAIN_SECONDS: Final = 30.0  # for workers to finish what they are at

H = TypeVar("H", bound=Handler | AsyncHandler | CursorHandler)
B = TypeVar("B", bound=BatchHandler | AsyncBatchHandler)
U = TypeVar("U", bound=Upcast)


class Consumer:
    """A consumer application: each event's effects happen once, in your PostgreSQL.

    The name is the scope of deduplication: consumers of the same name share what they have handled,
    also across consumer groups. Run as many processes as the topics have partitions.

        app = Consumer("billing", kafka={"bootstrap.servers": "..."}, dsn="...", topics=["orders"])

        @app.handler("OrderPlaced")
        def placed(conn, event):
            conn.execute("INSERT INTO invoice VALUES (%s, %s)", (event.key, event.data["total"]))

        app.run()

    Return means done, an exception means try again (the event's partition waits, the others go on),
    `Reject` means never, `Skip` means nothing (more) to do.

    What is given up becomes a dead letter: kept whole in a table beside the inbox and, if `dead_letter`
    names a topic, copied there. `unknown` says what to do with event types that have no handler, `stale`
    with events whose ids are from before what the inbox still remembers.

    `type_header` and `id_header` name the headers that carry an event's type and id. `untyped` says what to
    do with records that have no type: "stop" ends the consumer as long as no record since its start has had
    one, and later does with them what `unknown` says.

    An id that is no UUID is unique only within its source, and that is its topic unless `id_scope` says
    otherwise: a name for the ids of all topics, or of some, {"orders": "shop", "payments": "shop"}.
    `unscoped_ids` names the topics whose events were handled by a version that did not know this, so that
    they are recognised; () for none. Where it is not given, meeting such an id ends the consumer.

    Times are in seconds. `lock_timeout` bounds the wait for another transaction's claim or row,
    `idle_timeout` how long a frozen process may hold its own. `commit_timeout` matters with
    group.protocol=consumer only: a member whose offset commits are not taken for so long takes no more
    records; it should be the group's session time-out on the broker (45 by default).

    `pooler` is for a dsn that leads to a pooler which lends a server connection for one transaction, such as
    PgBouncer with pool_mode=transaction: nothing is then left in the session. An event that kills its process
    is not found there, since that takes a lock of the session.

    `kafka` takes librdkafka properties; those that would lose events are refused. `dsn` is a libpq
    connection string, empty for libpq's own PG* environment. `start` says where a new group begins.
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

        `conn` is the transaction: what is written through it is committed together with the fact that
        the event was handled. In a batch, handlers run in psycopg's pipeline mode, where the statements
        of many events share a round trip and an error may surface at a later statement; then the batch
        is rolled back and each event handled alone, without it. `pipeline=False` leaves it out.

        With `cursor=True` the function is `(cursor, event)`, and the cursor the same for all events: much
        cheaper than `conn.execute`, which makes one for each statement. Its next statement replaces the
        result of the one before.

        An `async def` handler gets an AsyncConnection in the same transaction. It runs to its end in the
        consumer's thread, without pipeline mode: it may await several things at once, but the next event
        waits for it.

        `on_failure` says what happens to an event that fails: "block" holds its partition and tries
        again for ever; "park" lets only the events of its key wait, in a table, and tries again from
        there; "dead_letter" gives it up and "stop" ends the consumer once the attempts of the
        RetryStrategy are used up (5 where it names none).

        `version` is the version of `event.data` that the handler wants; older ones are upcast, others
        rejected. Without it the handler gets what the upcasts lead to.
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

        Five to ten times faster than one call per event when it writes them with one statement. When it
        raises, it is called again with fewer events, at last with each alone. `on_failure` and `version`
        as for `handler`.
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

        Upcasts form a chain: an event of version 1 goes through those from 1, 2, ... The payload on the
        wire stays as it is.
        """

        def register(function: U) -> U:
            self._routes.upcasts.add(event_type, from_version, function)
            return function

        return register

    def run(self, workers: int = 1, listen: Address | None = None) -> None:
        """Consume until SIGTERM or SIGINT, or `stop`; finish the transaction at hand, then leave the group.

        Several `workers` are processes under this one, which starts one again that dies; more than there
        are partitions have nothing to do. With `listen` (host and port) health and metrics are served,
        those of further workers on the ports that follow.

        Raises Unreachable, InboxUnusable, ReadOnlyDatabase or Failed when it cannot begin, FencedConsumer
        when Kafka ends this member for good. A database that is lost later is waited for.
        """
        if not self._routes.by_type:
            raise UsageError(f"{self!r} has no handlers", remedy='add one with @app.handler("OrderPlaced")')
        if workers < 1:
            raise UsageError(f"workers={workers}: at least one works")
        self._stop.clear()
        if workers == 1:
            fill(self.role(), self.name, listen)
            return
        roles = {f"{self.name}-{number}": self.role() for number in range(1, workers + 1)}
        Fleet(roles, lambda name: None, DRAIN_SECONDS, listen).run(self._stop)

    def role(self) -> Role:
        """Say what each process of this consumer does and shows."""
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
        """Consume in a loop of your own: every event of the topics, whatever its type, handlers unused.

            with app.batches(max_size=500) as batches:
                for batch in batches:
                    with batch.transaction() as (conn, events):
                        ...

        `wait` is how many seconds a batch may wait to become full. Ends after `stop`. Installs no signal
        handlers. Raises what `run` raises.
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
            copies = DeadLetterTopic(self._settings, self._dead_letter_topic, str(self._settings["group.id"]))
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
        """Put spans around the handlers when the application has set up OpenTelemetry."""
        if "opentelemetry.trace" not in sys.modules:
            return self._routes
        from outbox_consumers.handlers import tracing  # an extra, of no cost where nobody uses it

        wrap = tracing.around(self.name, str(self._settings["group.id"]))
        return self._routes if wrap is None else self._routes.wrapped(wrap)

    def test(self, events: Iterable[Event], conn: psycopg.Connection[Any]) -> Result:
        """Run events through the handlers on a test's own connection: no Kafka, no commit, no waiting.

        Needs an open transaction and the inbox table. Each event gets one attempt in a savepoint, so the
        test sees the effects and rolls them back. Asynchronous handlers need `testing.connection`.
        """
        return trial.run(self._routes, self.name, self._database.table, conn, events)

    def health(self) -> Health:
        """Say whether `run` is polling Kafka and has its database; may be called from any thread."""
        return self.watched.health()

    @property
    def watched(self) -> MonitoredConsumer:
        """What `health.serving` shows of this consumer."""
        limit = 3 * self._loop_settings.budget
        return MonitoredConsumer(self.name, self.counters, self._state, limit, self._clock.now)

    def window(self, keep: timedelta | None = None) -> timedelta | None:
        """Derive from the topics how long the inbox must remember; None: for ever.

        Raises RefusedWindow for a `keep` that is shorter, Unreachable without brokers.
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
        """Ask `run` to end; may be called from any thread and from a signal handler."""
        self._stop.set()


@contextmanager
def _rare_collections(objects: int) -> Iterator[None]:
    """Let Python look for reference cycles less often while this is entered.

    A batch holds some ten small objects per event. With the default threshold of 700 the collector walks
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
