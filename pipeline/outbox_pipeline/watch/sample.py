"""The state of the servers at one moment. Values only: sources fill them, rules read them.

Positions in the WAL are integers (bytes since the start of the log), times are seconds. None
always means "not known" or "does not apply"; the field's comment says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outbox_pipeline.watch.verdict import Unseen


@dataclass(frozen=True, slots=True)
class WatchedNames:
    """The names of the objects on the servers that belong to this pipeline."""

    pipeline: str
    database: str
    slot: str
    publication: str
    table: str  # schema.name
    connector: str
    connector_user: str
    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    ticker: str = ""  # application_name of the ticker; empty: the connector's own heartbeat is used
    failover: bool = False  # asked for in the definition


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Server settings that decide how long WAL is kept. Sizes in bytes, times in seconds."""

    wal_level: str
    segment_bytes: int
    max_wal_bytes: int
    slot_cap_bytes: int | None  # max_slot_wal_keep_size; None: unlimited
    wal_keep_bytes: int
    checkpoint_timeout: float
    checkpoint_completion_target: float
    max_replication_slots: int
    wal_sender_timeout: float  # 0: never
    idle_slot_timeout: float  # PostgreSQL 18; 0: never
    synchronized_standby_slots: tuple[str, ...] = ()  # PostgreSQL 17


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The PostgreSQL server as a whole."""

    version: int  # as in server_version_num
    system_identifier: str
    timeline: int
    started_at: float  # epoch, the server's clock
    clock: float  # epoch, the server's clock, when it answered
    in_recovery: bool
    wal_position: int  # written on a primary; received or replayed on a standby
    redo_position: int  # start of the last completed checkpoint
    checkpoint_at: float  # epoch, the server's clock: start of the last completed checkpoint
    wal_dir_bytes: int | None  # None: no right to look
    archive_failing: bool
    settings: ServerSettings
    monitor: bool  # has the rights of pg_monitor

    @property
    def major(self) -> int:
        """The major version."""
        return self.version // 10000


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of pg_replication_slots, with its statistics."""

    name: str
    kind: str  # logical or physical
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    restart_lsn: int | None
    confirmed_lsn: int | None
    wal_status: str | None  # None: the slot never reserved WAL
    safe_wal_bytes: int | None
    xmin_age: int | None
    catalog_xmin_age: int | None
    catalog_xmin: int | None = None
    invalidation_reason: str | None = None  # PostgreSQL 17
    conflicting: bool | None = None  # PostgreSQL 16
    inactive_seconds: float | None = None  # PostgreSQL 17; restarts with the server
    failover: bool = False  # PostgreSQL 17
    synced: bool = False  # PostgreSQL 17
    spill_bytes: int = 0
    total_txns: int = 0

    @property
    def active(self) -> bool:
        """Whether a process holds the slot."""
        return self.active_pid is not None

    @property
    def lost(self) -> bool:
        """Whether the slot can never be used again.

        `conflicting` is true on PostgreSQL 16 for every lost slot and false on 17 for some
        (measured), so it is not asked.
        """
        return self.wal_status == "lost" or self.invalidation_reason is not None


@dataclass(frozen=True, slots=True)
class Sender:
    """A process that holds a slot: usually a WAL sender, sometimes a session that calls the SQL functions."""

    pid: int
    backend_type: str | None
    user: str | None
    application: str | None
    client: str | None
    state: str | None
    sent_lsn: int | None
    flush_lag: float | None  # seconds, the server's clock; None: idle, or the client never answers
    reply_at: float | None  # epoch, the client's clock
    wait_event: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that holds back WAL (it has an xid), vacuum (it has an xmin or xid), or both."""

    kind: str  # backend or prepared
    pid: int | None
    gid: str | None
    database: str | None
    user: str | None
    application: str | None
    state: str | None
    xid: int | None
    xid_age: int | None
    xmin_age: int | None
    seconds: float | None  # since the transaction began or was prepared; None: no right to see it

    @property
    def title(self) -> str:
        """Describe it so that an operator can find it."""
        name = f"prepared transaction {self.gid!r}" if self.kind == "prepared" else f"backend {self.pid}"
        details = [f"database {self.database}"] if self.database else []
        details += [f"user {self.user}"] if self.user else []
        details += [f"application {self.application!r}"] if self.application else []
        details += [self.state] if self.state else []
        return f"{name} ({', '.join(details)})"


@dataclass(frozen=True, slots=True)
class OutboxSample:
    """The outbox table's statistics; of a partitioned one, the sum over its partitions."""

    inserted: int  # n_tup_ins: counts rolled back rows too, so it is a sign of life and no count of rows
    deleted: int
    live: int
    dead: int
    estimated_rows: int
    bytes: int
    autovacuum_seconds: float | None  # since the last autovacuum; None: never
    stats_reset_at: float | None
    readable: bool  # we may SELECT from it
    oldest_seconds: float | None = None  # age of the oldest row; None: empty, or not readable


@dataclass(frozen=True, slots=True)
class Publication:
    """The publication, and whether it covers the outbox table."""

    publishes_insert: bool
    covers_table: bool
    row_filter: bool  # PostgreSQL 15: some rows are left out


@dataclass(frozen=True, slots=True)
class PostgresSample:
    """The state of PostgreSQL, from one statement (so from one moment)."""

    server: ServerSample
    slots: tuple[Slot, ...]
    senders: tuple[Sender, ...]
    holders: tuple[Holder, ...]  # oldest first
    outbox: OutboxSample | None  # None: no such table
    publication: Publication | None  # None: no such publication
    tickers: int  # sessions of the ticker


@dataclass(frozen=True, slots=True)
class TaskSample:
    """One task of the connector."""

    id: int
    state: str
    trace_line: str = ""
    worker: str = ""  # host:port of the worker that runs it


@dataclass(frozen=True, slots=True)
class ConnectSample:
    """The state of the connector in Kafka Connect. `state` None: there is no such connector."""

    state: str | None
    worker: str = ""
    tasks: tuple[TaskSample, ...] = ()
    trace_line: str = ""
    offset_lsn: int | None = None  # None: nothing stored yet, or offset_unreadable
    offset_type: str | None = None
    offset_unreadable: bool = False  # an offset is stored that holds no position
    config: Mapping[str, str] | None = None  # as it is stored, secrets masked; None: not read


@dataclass(frozen=True, slots=True)
class GroupSample:
    """A consumer group. Partitions are (topic, partition); `committed` lacks what was never committed."""

    name: str
    state: str  # as the broker says it: STABLE, EMPTY, DEAD, ...
    members: int
    committed: Mapping[tuple[str, int], int]
    assigned: frozenset[str] = frozenset()  # topics that its members read

    def reads(self, topic: str) -> bool:
        """Whether the group is known to read a topic; one that never read any may come to read each."""
        known = self.assigned | {name for name, _ in self.committed}
        return not known or topic in known


@dataclass(frozen=True, slots=True)
class KafkaSample:
    """End offsets of the outbox topics, and the groups that read them."""

    ends: Mapping[tuple[str, int], int]
    starts: Mapping[tuple[str, int], int]
    groups: tuple[GroupSample, ...]
    missing_topics: tuple[str, ...] = ()
    message_topic: bool | None = None  # whether the topic of ticks and canaries exists; None: not looked


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of all servers. `at` is the wall clock of the sampler, in seconds. None: not asked."""

    at: float
    names: WatchedNames
    postgres: PostgresSample | Unseen | None
    connect: ConnectSample | Unseen | None = None
    kafka: KafkaSample | Unseen | None = None
    disk_free_bytes: int | None = None  # None: unknown
    canary_seconds: float | None = None  # commit to Kafka, measured by the ticker; None: not measured
    no_tick: str | None = (
        None  # why no tick may be sent; empty: ticks may be sent; None: not known or not wanted
    )
    foreign: str | None = (
        None  # why the connector is not one that apply made; empty: it is one; None: not known
    )

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """The sources that could not be sampled."""
        return tuple(s for s in (self.postgres, self.connect, self.kafka) if isinstance(s, Unseen))
