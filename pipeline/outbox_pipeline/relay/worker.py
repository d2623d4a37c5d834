"""A worker owns some shards and publishes their rows until it is told to stop.

One thread owns the session with PostgreSQL and decides everything. What waits for Kafka runs in
threads of its own, one per shard, and returns a future. So the session is never idle for long, and
PostgreSQL ends it, with its locks, only when the whole process is frozen or gone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from typing import Any, Final

import psycopg

from outbox_connectors import backoff
from outbox_connectors.definition import Definition
from outbox_pipeline.errors import AccessDenied, Failed, Unreachable
from outbox_pipeline.ids import publisher
from outbox_pipeline.relay import admission, refusals
from outbox_pipeline.relay.batches import Progress, resume
from outbox_pipeline.relay.counters import RelayCounters
from outbox_pipeline.relay.destinations import Destinations, TopicUnavailable
from outbox_pipeline.relay.names import RelayNames
from outbox_pipeline.relay.producer import Fenced, PlainProducer, RefusedBatch, ShardProducer
from outbox_pipeline.relay.progress import Abandoned
from outbox_pipeline.relay.session import RelaySession
from outbox_pipeline.relay.settings import RelaySettings, producer_config, progress_config
from outbox_pipeline.relay.shard_publisher import Phase, ShardPublisher, publish
from outbox_pipeline.relay.shards import moves
from outbox_pipeline.relay.unwritable_topics import UnwritableTopics
from outbox_pipeline.relay.wakeup import PollingDelay, Waiter
from outbox_pipeline.servers import postgres

REBALANCE_SECONDS: Final = 2.5  # between two checks of which workers there are
START_SECONDS: Final = 5.0  # during which workers that are still starting are counted
GRACE_SECONDS: Final = 15.0  # for batches in flight when the worker is told to stop
FIRST_BACKOFF_SECONDS: Final = 0.1
LONGEST_BACKOFF_SECONDS: Final = 10.0
BACKOFF_JITTER: Final = 0.3
RAISE_SECONDS: Final = 1.0  # minimum time between two raises of the read floors, and
RAISE_ROWS: Final = 500  # the minimum number of rows published between them

Say = Callable[[str], None]


class RelayWorker:
    """Publishes the rows of its shards. `run` is called once."""

    def __init__(
        self,
        definition: Definition,
        names: RelayNames,
        shards: int,
        settings: RelaySettings,
        *,
        say: Say,
        waiter: Waiter,
        stop: Event,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        until: int | None = None,
    ) -> None:
        """Prepare. `until` is for a switch, which keeps other workers out: the last position to publish."""
        self._until = until
        self.counters = RelayCounters()
        self._definition = definition
        self._names = names
        self._shards = shards
        self._settings = settings
        self._say = say
        self._waiter = waiter
        self._stop = stop
        self._clock = clock
        self._rng = rng or random.Random()
        self._mine: dict[int, ShardPublisher] = {}
        self._destinations = Destinations(definition)
        self._unwritable = UnwritableTopics()
        self._polling_delay = PollingDelay()
        self._next_rebalance = 0.0
        self._next_read = 0.0
        self._next_raise = 0.0
        self._raise_at = RAISE_ROWS

    def run(self) -> RelayCounters:
        """Work until `stop` is set, or until the outbox is empty where the settings say so.

        A database or broker that goes away is waited for. Raises OutboxError where waiting does not help.
        """
        self._started = self._clock()
        failures = 0
        while not self._stop.is_set():
            try:
                session = self._open()
            except (Unreachable, psycopg.Error) as error:
                failures = self._back_off(failures, str(error))
                continue
            if session is None:
                break
            began, done = self._clock(), self.counters.batches
            try:
                if self._work(session):
                    break
            except psycopg.Error as error:
                if postgres.is_refused(error):
                    raise postgres.failure(error) from error
                if self.counters.batches > done or self._clock() - began > LONGEST_BACKOFF_SECONDS:
                    failures = 0
                failures = self._back_off(failures, f"lost the session with PostgreSQL: {error}")
            finally:
                self._abandon()
                session.close()
        return self.counters

    def _open(self) -> RelaySession | None:
        place = (self._definition, self._names, self._shards)
        if self._until is not None:
            session = RelaySession.open(*place)
            session.until = self._until
            return session
        transactions = self._settings.transactions
        return admission.open_session(*place, transactions=transactions, waiter=self._waiter, stop=self._stop)

    def _back_off(self, failures: int, why: str) -> int:
        if failures == 0:
            self._say(" ".join(why.split()))
        self._waiter.watch(None)
        failures += 1
        deadline = self._clock() + backoff.delay(
            failures,
            FIRST_BACKOFF_SECONDS,
            LONGEST_BACKOFF_SECONDS,
            jitter=BACKOFF_JITTER,
            random=self._rng.random(),
        )
        while not self._stop.is_set() and (left := deadline - self._clock()) > 0:
            self._waiter.wait(left)
        return failures

    def _abandon(self) -> None:
        """Forget every shard: the session that held their locks is closed or about to be."""
        self._waiter.watch(None)
        for owned in self._mine.values():
            owned.producer.abandoned.set()
        self._mine.clear()

    # -- the loop ------------------------------------------------------------------------------------

    def _work(self, session: RelaySession) -> bool:
        """Publish rows on one session. Returns True when there is nothing more to do."""
        self._waiter.watch(session.conn.fileno())
        self._next_rebalance = self._next_read = 0.0
        grace_ends: float | None = None
        while True:
            self._collect(session)
            if self._stop.is_set():
                grace_ends = grace_ends or self._clock() + GRACE_SECONDS
                for owned in self._mine.values():
                    owned.to_release = True
            elif self._clock() >= self._next_rebalance:
                self._rebalance(session)
            if session.notified() or self._clock() >= self._next_read:
                self._find_shards_with_rows(session)
            self._advance(session)
            self._raise_read_floors(session)
            if grace_ends is not None and (not self._mine or self._clock() >= grace_ends):
                return True
            if self._settings.until_empty and self._empty(session):
                return True
            self._waiter.wait(self._idle_seconds())

    def _idle_seconds(self) -> float:
        """Return the seconds until something can be due."""
        moments = [self._next_rebalance, self._next_read]
        moments += [c.resume_at for c in self._mine.values() if c.phase is Phase.PAUSING]
        if any(
            c.phase is Phase.READY and (c.may_have_rows or c.progress.published) for c in self._mine.values()
        ):
            return 0.0
        if self._stop.is_set():
            return 0.1
        return min(moments) - self._clock()

    def _rebalance(self, session: RelaySession) -> None:
        now = self._clock()
        self._next_rebalance = now + REBALANCE_SECONDS * self._rng.uniform(0.8, 1.0)
        seen = session.workers()
        if seen.slot and self._until is None:
            publisher.refuse_beside_connector(session.conn, self._definition)
        workers = (
            max(seen.workers, self._settings.workers) if now < self._started + START_SECONDS else seen.workers
        )
        todo = moves(self._shards, workers, mine=self._mine.keys(), held=seen.held, rng=self._rng)
        for shard in todo.release:
            self._mine[shard].to_release = True
        for shard in todo.take:
            if session.try_shard(shard):
                self.counters.taken += 1
                self._take_over(shard)

    def _take_over(self, shard: int) -> None:
        """Begin to fence the previous owner of a shard whose lock this session holds."""
        config = producer_config(
            self._definition, self._names, shard, transactions=self._settings.transactions
        )
        producer: ShardProducer | PlainProducer
        if self._settings.transactions:
            progress = progress_config(self._definition, self._names)
            producer = ShardProducer(config, progress, self._names.progress_topic, shard)
        else:
            producer = PlainProducer(config)
        self._mine[shard] = ShardPublisher(shard, producer, self._in_thread(producer.take_over))

    def _in_thread(self, function: Callable[..., int | None], *args: Any) -> Future[int | None]:
        """Run a call that waits for Kafka. A daemon thread: a call that hangs must not keep the process."""
        future: Future[int | None] = Future()

        def work() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
            self._waiter.wake()

        Thread(target=work, daemon=True).start()
        return future

    # -- results from Kafka -----------------------------------------------------------------------

    def _collect(self, session: RelaySession) -> None:
        for owned in list(self._mine.values()):
            future = owned.future
            if owned.producer.stuck(time.monotonic()):
                owned.producer.abandoned.set()
                self._replace_producer(session, owned, Fenced("the Kafka client does not come back"))
                continue
            if future is None or not future.done():
                continue
            owned.future = None
            try:
                answer = future.result()
            except Fenced as error:
                self._replace_producer(session, owned, error)
            except Abandoned:
                owned.phase = Phase.READY
            except (RefusedBatch, TopicUnavailable) as error:
                self._refused(session, owned, error)
            except Unreachable as error:
                if owned.phase is Phase.TAKING or isinstance(error, AccessDenied):
                    raise
                owned.pause(self._clock())
            else:
                self._succeeded(session, owned, answer)

    def _succeeded(self, session: RelaySession, owned: ShardPublisher, answer: int | None) -> None:
        if owned.phase is Phase.TAKING:
            # A query on this session proves that it held the lock until after init_transactions: from here
            # on only a later owner can fence this producer.
            owned.phase = Phase.READY
            owned.progress = resume(session.noted(owned.shard), answer)
            if owned.progress.unsent is not None:
                owned.rows = session.noted_rows(owned.shard)
                self.counters.sent_again += bool(owned.rows)
                self._send(owned)
            return
        self.counters.published += len(owned.rows)
        self.counters.batches += 1
        owned.search = owned.search.sent(len(owned.rows))
        self._finished(owned)

    def _finished(self, owned: ShardPublisher) -> None:
        """Note that nothing of the batch in flight is left to send."""
        last = owned.progress.last
        owned.progress = Progress(last=last, published=last)
        owned.rows, owned.attempts, owned.phase = [], 0, Phase.READY

    def _replace_producer(self, session: RelaySession, owned: ShardPublisher, error: Fenced) -> None:
        """Make a new producer, after proof that this session still holds the shard's lock.

        Without the proof, a worker that has lost the shard would fence its new owner.
        """
        self.counters.fenced += 1
        self._say(f"shard {owned.shard}: {error.problem}")
        del self._mine[owned.shard]
        if owned.shard in session.workers().mine:
            self._take_over(owned.shard)

    def _refused(
        self, session: RelaySession, owned: ShardPublisher, error: RefusedBatch | TopicUnavailable
    ) -> None:
        """Handle a batch of which no record is visible: send it again, in part, or without a row."""
        self.counters.refused += 1
        decision = refusals.decide(
            owned, error, self._definition.kafka, self._settings.on_poison, self._clock()
        )
        n = owned.progress.last
        with session.conn.transaction():
            for row, cause in decision.dead_letters:
                self.counters.dead_letters += 1
                self._say(f"dead letter {row.id}: {cause}")
                session.add_dead_letter(row, cause, attempts=owned.attempts + 1, blocks=decision.blocks)
            if decision.rows is not None:
                session.note(owned.shard, n, decision.rows)
        if decision.unwritable:
            self._say(f"{decision.unwritable}: {error.problem}; its rows wait, the others go on")
            self._unwritable.pause(decision.unwritable, self._clock())
        if decision.rows is not None:
            owned.rows = list(decision.rows)
        owned.search = decision.search
        # A plain producer cannot be used again after a refusal.
        if not self._settings.transactions or (isinstance(error, RefusedBatch) and error.spent):
            self._replace_producer(session, owned, Fenced(error.problem))
        elif decision.wait:
            owned.pause(self._clock())
        else:
            self._send(owned)

    # -- batches -------------------------------------------------------------------------------------

    def _send(self, owned: ShardPublisher) -> None:
        if not owned.rows:
            self._finished(owned)
            return
        owned.phase = Phase.SENDING
        owned.future = self._in_thread(
            publish,
            owned.producer,
            owned.rows,
            owned.progress.last,
            self._definition.kafka,
            self._destinations,
        )

    def _find_shards_with_rows(self, session: RelaySession) -> None:
        """Ask in one query which idle shards have rows."""
        ready = [c.shard for c in self._mine.values() if c.phase is Phase.READY and not c.may_have_rows]
        found = session.waiting(ready, self._unwritable.now(self._clock())) if ready else frozenset()
        for shard in found:
            self._mine[shard].may_have_rows = True
        if found:
            self._polling_delay.found()
        else:
            self._polling_delay.missed()
        self._next_read = self._clock() + self._polling_delay.seconds

    def _advance(self, session: RelaySession) -> None:
        """Send the next rows of each shard that is ready, or release it."""
        now = self._clock()
        for owned in list(self._mine.values()):
            if owned.phase is Phase.PAUSING and now >= owned.resume_at:
                self._send(owned)
            if owned.phase is not Phase.READY:
                continue
            if owned.to_release:
                self._release(session, owned)
            elif owned.may_have_rows or owned.progress.published is not None:
                self._read(session, owned)

    def _raise_read_floors(self, session: RelaySession) -> None:
        """Skip the deleted rows at the front of the index, where there may be enough to matter."""
        if self.counters.published >= self._raise_at and self._clock() >= self._next_raise:
            session.raise_read_floors(self._mine, self._clock())
            self._raise_at = self.counters.published + RAISE_ROWS
            self._next_raise = self._clock() + RAISE_SECONDS

    def _release(self, session: RelaySession, owned: ShardPublisher) -> None:
        published = owned.progress.published
        if published is not None:
            session.clear(owned.shard, published, self._settings.mode)
        session.release_shard(owned.shard)
        del self._mine[owned.shard]

    def _read(self, session: RelaySession, owned: ShardPublisher) -> None:
        progress = owned.progress
        n = progress.last + 1
        rows = session.next_rows(
            owned.shard,
            n,
            owned.search.limit(self._settings.batch),
            published=progress.published,
            unwritable=self._unwritable.now(self._clock()),
            mode=self._settings.mode,
        )
        owned.may_have_rows = False
        if not rows:
            owned.progress = Progress(last=progress.last)
            return
        owned.progress, owned.rows = Progress(last=n, unsent=n), rows
        broken = refusals.broken(rows)
        if broken:
            self._refused(session, owned, broken)
        else:
            self._send(owned)

    def _empty(self, session: RelaySession) -> bool:
        """Return whether no shard, of this worker or of another, has rows that may be published."""
        if any(
            c.phase is not Phase.READY or c.may_have_rows or c.progress.published for c in self._mine.values()
        ):
            return False
        unwritable = self._unwritable.now(self._clock())
        if session.waiting(range(self._shards), unwritable):
            return False
        if unwritable and session.waiting(range(self._shards), ()):
            raise Failed(
                f"rows of {', '.join(sorted(unwritable))} are left",
                remedy="create the topic or grant the right to, then run the relay again",
            )
        return True
