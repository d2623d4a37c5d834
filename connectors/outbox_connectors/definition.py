"""The definition of one pipeline: the content of `outbox.yaml`, validated and with every default filled in.

Nothing here reads files or the environment (`loading` does), so a test can construct one directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Secret:
    """A password that is masked in its repr and str, so that no log line or traceback shows it."""

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
    """How Kafka Connect connects to the database, and as which role."""

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
    """The outbox table and the roles that write to it."""

    table: TableName
    writers: tuple[str, ...]
    payload: Payload
    partition: Partitioning
    keep: timedelta


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The desired state of a topic. `config` holds topic properties under Kafka's names."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kafka:
    """The Kafka side. `client` is passed to librdkafka unchanged and may contain secrets."""

    client: Mapping[str, str] = field(repr=False)
    topic: str  # template with {aggregate_type}
    defaults: TopicSpec  # name is the template
    aggregates: Mapping[str, TopicSpec]  # by aggregate type, defaults already applied

    def topic_of(self, aggregate_type: str) -> str:
        """Return the name of the topic for events of this aggregate type."""
        return self.topic.replace("{aggregate_type}", aggregate_type)


@dataclass(frozen=True, slots=True)
class ConnectAuth:
    """How to authenticate to Kafka Connect's REST API. All empty: no authentication."""

    user: str = ""
    password: Secret = Secret("")
    bearer: Secret = Secret("")
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class Connect:
    """Kafka Connect's address, the connector's name and property overrides."""

    url: str  # may carry a path prefix
    connector: str  # the connector's name
    auth: ConnectAuth
    config: Mapping[str, str]  # overrides; they win over every property of the profile


@dataclass(frozen=True, slots=True)
class WatchSection:
    """How the pipeline is watched. `ticker` None: the connector sends its own heartbeat instead."""

    ticker: timedelta | None
    roles: tuple[str, ...]  # roles that send ticks, besides the administrator; empty: the outbox's writers
    warn_left: timedelta
    critical_left: timedelta
    groups: tuple[str, ...]
    disk_free_from: str  # "unknown", a path, or a size in bytes as text


@dataclass(frozen=True, slots=True)
class Definition:
    """One pipeline as its definition file describes it."""

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
        """Return the prefix of the logical messages that advance an idle slot."""
        return f"{self.pipeline}.heartbeat"

    @property
    def canary_prefix(self) -> str:
        """Return the prefix of the logical messages that prove delivery from PostgreSQL to Kafka."""
        return f"{self.pipeline}.canary"

    @property
    def message_topic(self) -> str:
        """Return the topic to which Debezium writes logical messages: ticks and canaries."""
        return f"{self.topic_prefix}.message"
