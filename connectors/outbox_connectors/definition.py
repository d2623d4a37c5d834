"""The definition of one pipeline as values: what `outbox.yaml` says, checked and complete.

Nothing here reads files or the environment (`loading` does), so a test can build one by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Secret:
    """A password that never shows itself in a repr, a log line or a traceback."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "***"

    def __bool__(self) -> bool:
        return bool(self.value)


@dataclass(frozen=True, slots=True)
class TableName:
    """A table with its schema, both as PostgreSQL stores them (no quoting applied)."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class Payload(StrEnum):
    """The type of the payload column, which decides the value converter."""

    JSONB = "jsonb"
    BYTEA = "bytea"


class Partitioning(StrEnum):
    """How the outbox table is partitioned."""

    NONE = "none"
    DAILY = "daily"


@dataclass(frozen=True, slots=True)
class ConnectorLogin:
    """How Kafka Connect reaches the database, and the role it does so with."""

    host: str
    port: int
    database: str
    user: str
    password: str  # what Connect stores: a `${provider:...}` reference, resolved on the worker
    role_password: Secret  # used once, to create the role; empty: the role must exist already
    sslmode: str
    ssl: Mapping[str, str]  # database.sslrootcert and friends, paths on the Connect worker


@dataclass(frozen=True, slots=True)
class Postgres:
    """The database side of the pipeline."""

    admin: Secret  # libpq conninfo; empty: libpq's own PG* environment
    connector: ConnectorLogin
    slot: str
    publication: str
    failover: bool  # asked for; has an effect on PostgreSQL 17 and later
    restrict_messages: bool  # take pg_logical_emit_message from PUBLIC


@dataclass(frozen=True, slots=True)
class Outbox:
    """The outbox table and who writes it."""

    table: TableName
    writers: tuple[str, ...]
    payload: Payload
    partition: Partitioning
    keep: timedelta


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic of the pipeline should be. `config` holds topic properties as Kafka names them."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kafka:
    """The Kafka side. `client` is handed to librdkafka as it is (with secrets in it)."""

    client: Mapping[str, str] = field(repr=False)
    topic: str  # template with {aggregate_type}
    defaults: TopicSpec  # name is the template
    aggregates: Mapping[str, TopicSpec]  # by aggregate type, defaults already applied

    def topic_of(self, aggregate_type: str) -> str:
        """Name the topic that rows of this aggregate type go to."""
        return self.topic.replace("{aggregate_type}", aggregate_type)


@dataclass(frozen=True, slots=True)
class ConnectAuth:
    """How to authenticate to Kafka Connect's REST API. Empty means: not at all."""

    user: str = ""
    password: Secret = Secret("")
    bearer: Secret = Secret("")
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class Connect:
    """Kafka Connect and the connector's last words."""

    url: str  # may carry a path prefix
    connector: str  # the connector's name
    auth: ConnectAuth
    config: Mapping[str, str]  # overrides; they win over every property of the profile


@dataclass(frozen=True, slots=True)
class WatchSection:
    """How the pipeline is watched. `ticker` None: the connector's own heartbeat is rendered instead."""

    ticker: timedelta | None
    roles: tuple[str, ...]  # who ticks, besides the administrator; none: the outbox's writers
    warn_left: timedelta
    critical_left: timedelta
    groups: tuple[str, ...]
    disk_free_from: str  # "unknown", a path, or a size in bytes as text


@dataclass(frozen=True, slots=True)
class Definition:
    """One pipeline, as its definition file says it."""

    pipeline: str
    topic_prefix: str  # Debezium's topic.prefix; offsets are keyed by it
    source: str  # path of the file, for messages
    postgres: Postgres
    outbox: Outbox
    kafka: Kafka
    connect: Connect
    watch: WatchSection

    @property
    def heartbeat_prefix(self) -> str:
        """The prefix of the logical messages that keep the slot moving."""
        return f"{self.pipeline}.heartbeat"

    @property
    def canary_prefix(self) -> str:
        """The prefix of the logical messages that prove the way from PostgreSQL to Kafka."""
        return f"{self.pipeline}.canary"

    @property
    def message_topic(self) -> str:
        """Where Debezium puts logical messages: ticks and canaries."""
        return f"{self.topic_prefix}.message"
