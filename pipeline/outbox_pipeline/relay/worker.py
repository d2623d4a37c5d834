"""A worker: it owns some shards and carries their rows, until it is told to stop.

One thread owns the session with PostgreSQL and decides everything. What waits for Kafka runs in
threads of its own, one per shard, and comes back as a future. So the session is never silent for
long, and PostgreSQL ends it, with its locks, only when the whole process is frozen or gone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from typing import Any, Final

import psycopg

from outbox_connectors.definition import Definition
from outbox_pipeline.errors import Failed, Unreachable
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

LOOK_SECONDS: Final = 2.5  # between two looks at the other workers
START_SECONDS: Final = 5.0  # in which the workers that are to come are counted as there
GRACE_SECONDS: Final = 15.0  # that batches on their way have when the worker is told to stop
LONGEST_BACKOFF_SECONDS: Final = 10.0
LIFT_SECONDS: Final = 1.0  # between two looks for the lowest rows of our shards, and
LIFT_ROWS: Final = 500  # what has to be published between them

Say = Callable[[str], None]


class RelayWorker:
    """Carries the rows of its shards. `run` is called once."""

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
        """Prepare. `until` is for a switch, which keeps other workers out: the last position to carry."""
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
        self._parking = UnwritableTopics()
        self._pace = PollingDelay()
        self._next_look = 0.0
        self._next_read = 0.0
        self._next_lift = 0.0
        self._lift_at = LIFT_ROWS

    def run(self) -> RelayCounters:
        """Work until `stop` is set, or until the outbox is empty where the settings say so.

        A database or broker that goes away is waited for. Raises OutboxError for what waiting cannot mend.
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
        delay = min(LONGEST_BACKOFF_SECONDS, 0.1 * 2.0**failures)
        deadline = self._clock() + delay * self._rng.uniform(0.7, 1.3)
        while not self._stop.is_set() and (left := deadline - self._clock()) > 0:
            self._waiter.wait(left)
        return min(failures + 1, 20)

    def _abandon(self) -> None:
        """Let go of every shard: the session that held their locks is gone or about to go."""
        self._waiter.watch(None)
        for carriage in self._mine.values():
            carriage.producer.abandoned.set()
        self._mine.clear()

    # -- the loop ------------------------------------------------------------------------------------

    def _work(self, session: RelaySession) -> bool:
        """Carry rows on one session. Returns True when there is nothing more to do."""
        self._waiter.watch(session.conn.fileno())
        self._next_look = self._next_read = 0.0
        grace_ends: float | None = None
        while True:
            self._collect(session)
            if self._stop.is_set():
                grace_ends = grace_ends or self._clock() + GRACE_SECONDS
                for carriage in self._mine.values():
                    carriage.leaving = True
            elif self._clock() >= self._next_look:
                self._rebalance(session)
            if session.notified() or self._clock() >= self._next_read:
                self._look_for_rows(session)
            self._feed(session)
            self._lift_floors(session)
            if grace_ends is not None and (not self._mine or self._clock() >= grace_ends):
                return True
            if self._settings.until_empty and self._empty(session):
                return True
            self._waiter.wait(self._patience())

    def _patience(self) -> float:
        """Say how long nothing can be due."""
        moments = [self._next_look, self._next_read]
        moments += [c.resume_at for c in self._mine.values() if c.phase is Phase.PAUSING]
        if any(c.phase is Phase.READY and (c.hungry or c.progress.published) for c in self._mine.values()):
            return 0.0
        if self._stop.is_set():
            return 0.1
        return min(moments) - self._clock()

    def _rebalance(self, session: RelaySession) -> None:
        now = self._clock()
        self._next_look = now + LOOK_SECONDS * self._rng.uniform(0.8, 1.0)
        look = session.look()
        if look.slot and self._until is None:
            publisher.refuse_beside_connector(session.conn, self._definition)  # refuses: a connector has come
        workers = (
            max(look.workers, self._settings.workers) if now < self._started + START_SECONDS else look.workers
        )
        todo = moves(self._shards, workers, mine=self._mine.keys(), held=look.held, rng=self._rng)
        for shard in todo.give:
            self._mine[shard].leaving = True
        for shard in todo.take:
            if session.try_shard(shard):
                self.counters.taken += 1
                self._take_over(shard)

    def _take_over(self, shard: int) -> None:
        """Begin to fence whoever had the shard before. Its lock must be ours."""
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
        """Run what waits for Kafka beside us. A daemon: a call that is lost must not keep the process."""
        future: Future[int | None] = Future()

        def work() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)
            self._waiter.wake()

        Thread(target=work, daemon=True).start()
        return future

    # -- what comes back from Kafka ------------------------------------------------------------------

    def _collect(self, session: RelaySession) -> None:
        for carriage in list(self._mine.values()):
            future = carriage.future
            if carriage.producer.stuck(time.monotonic()):
                carriage.producer.abandoned.set()
                self._replace_producer(session, carriage, Fenced("the Kafka client does not come back"))
                continue
            if future is None or not future.done():
                continue
            carriage.future = None
            try:
                answer = future.result()
            except Fenced as error:
                self._replace_producer(session, carriage, error)
            except Abandoned:
                carriage.phase = Phase.READY
            except (RefusedBatch, TopicUnavailable) as error:
                self._refused(session, carriage, error)
            except Unreachable as error:
                if carriage.phase is Phase.TAKING or "refuses" in error.problem:
                    raise
                carriage.pause(self._clock())
            else:
                self._succeeded(session, carriage, answer)

    def _succeeded(self, session: RelaySession, carriage: ShardPublisher, answer: int | None) -> None:
        if carriage.phase is Phase.TAKING:
            # Asking on our session proves that the lock outlived init_transactions: from here on only
            # a later owner can fence this producer.
            carriage.phase = Phase.READY
            carriage.progress = resume(session.noted(carriage.shard), answer)
            if carriage.progress.unsent is not None:
                carriage.rows = session.noted_rows(carriage.shard)
                self.counters.sent_again += bool(carriage.rows)
                self._send(carriage)
            return
        self.counters.published += len(carriage.rows)
        self.counters.batches += 1
        carriage.search = carriage.search.sent(len(carriage.rows))
        self._finished(carriage)

    def _finished(self, carriage: ShardPublisher) -> None:
        """Remember that the batch on its way is done with: nothing of it is left to send."""
        last = carriage.progress.last
        carriage.progress = Progress(last=last, published=last)
        carriage.rows, carriage.attempts, carriage.phase = [], 0, Phase.READY

    def _replace_producer(self, session: RelaySession, carriage: ShardPublisher, error: Fenced) -> None:
        """Make a new producer, after proof that the shard is still ours.

        A zombie that made one without asking would fence the rightful owner.
        """
        self.counters.fenced += 1
        self._say(f"shard {carriage.shard}: {error.problem}")
        del self._mine[carriage.shard]
        if carriage.shard in session.look().mine:
            self._take_over(carriage.shard)

    def _refused(
        self, session: RelaySession, carriage: ShardPublisher, error: RefusedBatch | TopicUnavailable
    ) -> None:
        """Decide on a batch of which nothing is visible: send it again, in part, or without a row."""
        self.counters.refused += 1
        verdict = refusals.judge(
            carriage, error, self._definition.kafka, self._settings.on_poison, self._clock()
        )
        n = carriage.progress.last
        with session.conn.transaction():
            for row, cause in verdict.buried:
                self.counters.dead_letters += 1
                self._say(f"dead letter {row.id}: {cause}")
                session.bury(row, cause, attempts=carriage.attempts + 1, blocks=verdict.blocks)
            if verdict.rows is not None:
                session.note(carriage.shard, n, verdict.rows)
        if verdict.parked:
            self._say(f"{verdict.parked}: {error.problem}; its rows wait, the others go on")
            self._parking.park(verdict.parked, self._clock())
        if verdict.rows is not None:
            carriage.rows = list(verdict.rows)
        carriage.search = verdict.search
        # A plain producer that was refused a record is of no use either.
        if not self._settings.transactions or (isinstance(error, RefusedBatch) and error.spent):
            self._replace_producer(session, carriage, Fenced(error.problem))
        elif verdict.wait:
            carriage.pause(self._clock())
        else:
            self._send(carriage)

    # -- rows on their way ---------------------------------------------------------------------------

    def _send(self, carriage: ShardPublisher) -> None:
        if not carriage.rows:
            self._finished(carriage)
            return
        carriage.phase = Phase.SENDING
        carriage.future = self._in_thread(
            publish,
            carriage.producer,
            carriage.rows,
            carriage.progress.last,
            self._definition.kafka,
            self._destinations,
        )

    def _look_for_rows(self, session: RelaySession) -> None:
        """Ask once which shards have rows."""
        ready = [c.shard for c in self._mine.values() if c.phase is Phase.READY and not c.hungry]
        found = session.waiting(ready, self._parking.parked(self._clock())) if ready else frozenset()
        for shard in found:
            self._mine[shard].hungry = True
        if found:
            self._pace.found()
        else:
            self._pace.missed()
        self._next_read = self._clock() + self._pace.seconds

    def _feed(self, session: RelaySession) -> None:
        """Give each shard that is ready its next rows, or its leave."""
        now = self._clock()
        for carriage in list(self._mine.values()):
            if carriage.phase is Phase.PAUSING and now >= carriage.resume_at:
                self._send(carriage)
            if carriage.phase is not Phase.READY:
                continue
            if carriage.leaving:
                self._give(session, carriage)
            elif carriage.hungry or carriage.progress.published is not None:
                self._read(session, carriage)

    def _lift_floors(self, session: RelaySession) -> None:
        """Forget the dead rows in front, where there may be enough to matter."""
        if self.counters.published >= self._lift_at and self._clock() >= self._next_lift:
            session.lift_floors(self._mine, self._clock())
            self._lift_at = self.counters.published + LIFT_ROWS
            self._next_lift = self._clock() + LIFT_SECONDS

    def _give(self, session: RelaySession, carriage: ShardPublisher) -> None:
        published = carriage.progress.published
        if published is not None:
            session.clear(carriage.shard, published, self._settings.mode)
        session.give_shard(carriage.shard)
        del self._mine[carriage.shard]

    def _read(self, session: RelaySession, carriage: ShardPublisher) -> None:
        progress = carriage.progress
        n = progress.last + 1
        rows = session.next_rows(
            carriage.shard,
            n,
            carriage.search.limit(self._settings.batch),
            published=progress.published,
            parked=self._parking.parked(self._clock()),
            mode=self._settings.mode,
        )
        carriage.hungry = False
        if not rows:
            carriage.progress = Progress(last=progress.last)
            return
        carriage.progress, carriage.rows = Progress(last=n, unsent=n), rows
        broken = refusals.broken(rows)
        if broken:
            self._refused(session, carriage, broken)
        else:
            self._send(carriage)

    def _empty(self, session: RelaySession) -> bool:
        """Tell whether no shard, whoever owns it, has rows that may be published."""
        if any(c.phase is not Phase.READY or c.hungry or c.progress.published for c in self._mine.values()):
            return False
        parked = self._parking.parked(self._clock())
        if session.waiting(range(self._shards), parked):
            return False
        if parked and session.waiting(range(self._shards), ()):
            raise Failed(
                f"rows of {', '.join(sorted(parked))} are left",
                remedy="create the topic or grant the right to, then run the relay again",
            )
        return True
