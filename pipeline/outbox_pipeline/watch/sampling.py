"""Take a sample of a pipeline: PostgreSQL, Connect and Kafka side by side, each with its own time-out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from types import TracebackType
from typing import Protocol, Self, TypeVar

import psycopg
from confluent_kafka import KafkaException
from psycopg.rows import TupleRow

from outbox_connectors import ownership
from outbox_connectors.definition import Definition
from outbox_connectors.errors import AccessDenied, LoginFailed, OutboxError, Refused
from outbox_pipeline.connect.transport import NotKafkaConnect
from outbox_pipeline.servers import postgres, slots
from outbox_pipeline.watch.sample import ConnectSample, KafkaSample, PostgresSample, Sample, WatchedNames
from outbox_pipeline.watch.sources.connect import ConnectSource
from outbox_pipeline.watch.sources.kafka import KafkaSource
from outbox_pipeline.watch.sources.postgres import PostgresSource
from outbox_pipeline.watch.verdict import Unseen

LONGEST_SECONDS = 10.0  # for a whole sample; a source that takes longer is unseen
APPLICATION_NAME = "outboxctl watch sample"
TICKER_NAME = slots.TICKER_APPLICATION
ANSWERED = (LoginFailed, AccessDenied, NotKafkaConnect)  # an answer, but not one that a sample is made of

Seen = TypeVar("Seen", covariant=True)


class SampleSource(Protocol[Seen]):
    """A server that samples are taken from."""

    def look(self) -> Seen: ...

    def close(self) -> None: ...


def names_of(definition: Definition) -> WatchedNames:
    """Take the names that belong to this pipeline from the definition."""
    return WatchedNames(
        pipeline=definition.pipeline,
        database=definition.postgres.connector.database,
        slot=definition.postgres.slot,
        publication=definition.postgres.publication,
        table=str(definition.outbox.table),
        connector=definition.connect.connector,
        connector_user=definition.postgres.connector.user,
        groups=definition.watch.groups,
        topics=tuple(spec.name for spec in definition.kafka.aggregates.values()),
        ticker=TICKER_NAME if definition.watch.ticker is not None else "",
        failover=definition.postgres.failover,
    )


def _kafka_source(definition: Definition, names: WatchedNames) -> KafkaSource:
    return KafkaSource(definition.kafka, names.groups, message_topic=definition.message_topic)


def free_bytes(free_from: str) -> int | None:
    """Return how much disk is free for WAL: of a path, or a size that was given. None: unknown."""
    if free_from.isdecimal():
        return int(free_from)
    if free_from in ("", "unknown"):
        return None
    try:
        return shutil.disk_usage(free_from).free
    except OSError:
        return None


class Sampler:
    """Takes samples, one at a time. Holds a session with each server until it is closed.

    A server that cannot be asked is Unseen in the sample, with the reason; `take` itself never raises
    for what servers do, and returns after LONGEST_SECONDS at the latest.
    """

    def __init__(
        self,
        names: WatchedNames,
        postgres_source: SampleSource[PostgresSample] | None,
        connect_source: SampleSource[ConnectSample] | None,
        kafka_source: SampleSource[KafkaSample] | None,
        *,
        disk_free_from: str = "unknown",
        definition: Definition | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._names = names
        self._postgres, self._connect, self._kafka = postgres_source, connect_source, kafka_source
        self._disk = disk_free_from
        self._definition = definition  # what the live connector is compared with
        self._clock = clock
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="sample")
        self._running: dict[str, Future[object]] = {}
        self._postgres_seen = False

    @classmethod
    def of(cls, definition: Definition, *, only_postgres: bool = False) -> Self:
        """Make a sampler for the servers of a definition. Connects when the first sample is taken."""
        names = names_of(definition)

        def connect() -> psycopg.Connection[TupleRow]:
            return postgres.connect(
                definition.postgres.admin, application_name=APPLICATION_NAME, dbname=names.database
            )

        return cls(
            names,
            PostgresSource(connect, names, definition.outbox.table),
            None if only_postgres else ConnectSource(definition.connect),
            None if only_postgres else _kafka_source(definition, names),
            disk_free_from=definition.watch.disk_free_from,
            definition=definition,
        )

    def take(self, canary_seconds: float | None = None) -> Sample:
        """Sample all servers in parallel.

        Raises Refused if the first connection to PostgreSQL goes through a pooler; later that is Unseen.
        """
        at = self._clock()
        deadline = time.monotonic() + LONGEST_SECONDS
        asked = {
            "postgres": self._ask("postgres", self._postgres),
            "connect": self._ask("connect", self._connect),
            "kafka": self._ask("kafka", self._kafka),
        }
        connect = _seen("connect", asked["connect"], deadline, ConnectSample)
        kafka = _seen("kafka", asked["kafka"], deadline, KafkaSample)
        seen = _seen(
            "postgres", asked["postgres"], deadline, PostgresSample, may_refuse=not self._postgres_seen
        )
        self._postgres_seen = self._postgres_seen or isinstance(seen, PostgresSample)
        return Sample(
            at=at,
            names=self._names,
            postgres=seen,
            connect=connect,
            kafka=kafka,
            disk_free_bytes=free_bytes(self._disk),
            canary_seconds=canary_seconds,
            no_tick=self._why_no_tick(connect, kafka),
            foreign=self._why_foreign(connect),
        )

    def _why_no_tick(
        self, connect: ConnectSample | Unseen | None, kafka: KafkaSample | Unseen | None
    ) -> str | None:
        definition = self._definition
        if definition is None or definition.watch.ticker is None or not isinstance(connect, ConnectSample):
            return None
        if not isinstance(kafka, KafkaSample):
            return None
        prefix = definition.heartbeat_prefix
        return ownership.why_no_message(definition, connect.config, prefix, kafka.message_topic)

    def _why_foreign(self, connect: ConnectSample | Unseen | None) -> str | None:
        if self._definition is None or not isinstance(connect, ConnectSample) or connect.config is None:
            return None
        return ownership.why_foreign(self._definition, connect.config)

    def _ask(self, name: str, source: SampleSource[object] | None) -> Future[object] | None:
        """Start a sample of one source; one that is still running is waited for instead."""
        if source is None:
            return None
        running = self._running.get(name)
        if running is None or running.done():
            running = self._running[name] = self._threads.submit(source.look)
        return running

    def close(self) -> None:
        """End every session."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for source in (self._postgres, self._connect, self._kafka):
            if source is not None:
                source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Kind = TypeVar("Kind")


def _seen(
    name: str,
    asked: Future[object] | None,
    deadline: float,
    kind: type[Kind],
    *,
    may_refuse: bool = False,
) -> Kind | Unseen | None:
    """Wait for a sample; a failure becomes Unseen with the reason. Refused is raised if `may_refuse`."""
    if asked is None:
        return None
    try:
        found = asked.result(timeout=max(0.0, deadline - time.monotonic()))
    except TookTooLong:
        return Unseen(name, f"no answer within {LONGEST_SECONDS:g} s", "look at its log and at the network")
    except OutboxError as error:
        if may_refuse and isinstance(error, Refused):
            raise
        place = f"{error.where}: " if error.where else ""
        return Unseen(name, f"{place}{error.problem}", error.remedy, refused=isinstance(error, ANSWERED))
    except KafkaException as error:
        return Unseen(name, f"Kafka: {error.args[0].str()}", "check that the brokers run")
    assert isinstance(found, kind)
    return found
