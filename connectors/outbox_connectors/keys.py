"""The keys of a definition file: one row each, with type, default and meaning.

The reader (`document`, `sections`), `outbox.schema.json` and the README's table (`key_reference`) all derive
from this table. A new key needs a row here, a field in `definition` and a line in `sections`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from outbox_connectors import value_types as types
from outbox_connectors.value_types import ValueType


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the file. `*` in its path stands for a name chosen by the user.

    `default` is written as in a file; None if the key is required. A `<name>` in it stands for the value of
    that key. `unless` names another key; if that one is set, this one is not required.
    """

    path: str
    type: ValueType
    default: str | None
    meaning: str
    unless: str = ""


def _topic(path: str, partitions: str, replicas: str) -> tuple[Key, ...]:
    moved = "Number of partitions. More can be added later, but keys then move to other partitions."
    copies = "Copies of each partition; 3 where there are three brokers."
    config = "Topic properties as Kafka names them, such as retention.ms."
    return (
        Key(f"{path}.partitions", types.whole_number(1, 10_000), partitions, moved),
        Key(f"{path}.replication_factor", types.whole_number(1, 100), replicas, copies),
        Key(f"{path}.config", types.PROPERTIES, "", config),
    )


_LEFT: Final = "Time left until the slot is invalidated or the disk is full, such as 4h."

# fmt: off
KEYS: Final = (
    Key("pipeline", types.PIPELINE, None,
        "Names slot, publication, connector and topic prefix unless they are given; at most 56 of a-z, "
        "0-9 and _."),

    Key("postgres", types.SECTION, None, "The database side."),
    Key("postgres.admin", types.TEXT, "",
        "libpq connection string of a role that may create the objects. Empty: libpq's own PG* "
        "environment."),
    Key("postgres.connector", types.SECTION, None, "How Kafka Connect reaches the database."),
    Key("postgres.connector.host", types.SOME_TEXT, None, "Host name, as Connect's workers see it."),
    Key("postgres.connector.port", types.whole_number(1, 65_535), "5432", "Port."),
    Key("postgres.connector.database", types.IDENTIFIER, None, "Database that holds the outbox."),
    Key("postgres.connector.user", types.IDENTIFIER, None,
        "Role that Connect logs in as. Created with LOGIN and REPLICATION, SELECT on the outbox, "
        "nothing else."),
    Key("postgres.connector.password", types.REFERENCE, None,
        "Reference that Connect resolves on its worker: ${env:VARIABLE} or ${file:/path:key}. A literal "
        "is refused: Connect's REST API would show it. Optional only with a client certificate.",
        unless="postgres.connector.ssl.sslcert"),
    Key("postgres.connector.role_password", types.TEXT, "",
        "Password to create the role with; stored as a SCRAM verifier. Empty: the role exists already."),
    Key("postgres.connector.sslmode", types.SSL_MODE, "prefer",
        "TLS to the database. prefer verifies nothing; verify-full outside a laptop."),
    Key("postgres.connector.ssl", types.SECTION, "", "Files on every Connect worker."),
    Key("postgres.connector.ssl.sslrootcert", types.TEXT, "",
        "CA certificate, a path on every Connect worker."),
    Key("postgres.connector.ssl.sslcert", types.TEXT, "",
        "Client certificate, a path on every Connect worker."),
    Key("postgres.connector.ssl.sslkey", types.TEXT, "",
        "Key of the client certificate, a path on every Connect worker."),
    Key("postgres.connector.ssl.sslpassword", types.TEXT, "",
        "Reference to the password of the key, resolved by Connect."),
    Key("postgres.slot", types.SLOT, "<pipeline>_outbox", "Replication slot."),
    Key("postgres.publication", types.PUBLICATION, "<pipeline>_outbox", "Publication."),
    Key("postgres.failover", types.FLAG, "true", "Create a failover slot on PostgreSQL 17 and later."),
    Key("postgres.restrict_messages", types.FLAG, "true",
        "Take pg_logical_emit_message from PUBLIC and grant it to the roles that send the heartbeat."),

    Key("outbox", types.SECTION, "", "The outbox table."),
    Key("outbox.table", types.TABLE, "public.outbox", "The table, as schema.table."),
    Key("outbox.writers", types.IDENTIFIERS, "", "Roles that get INSERT."),
    Key("outbox.payload", types.PAYLOAD, "jsonb", "Type of the payload column: jsonb or bytea."),
    Key("outbox.partition", types.PARTITIONING, "none", "none, or daily: old rows leave by DROP."),
    Key("outbox.keep", types.DURATION, "7 days",
        "How long rows stay. Longer than the longest outage you want to recover from, shorter than the "
        "topics' retention.ms."),

    Key("kafka", types.SECTION, None, "The Kafka side."),
    Key("kafka.client", types.KAFKA_CLIENT, None,
        "Any property of librdkafka, handed to Python clients as it is; bootstrap.servers is required."),
    Key("kafka.topic", types.TOPIC_TEMPLATE, "outbox.event.{aggregate_type}",
        "Topic of an aggregate type; at most 49 characters besides the placeholder."),
    Key("kafka.defaults", types.SECTION, "", "What a topic is unless said otherwise."),
    *_topic("kafka.defaults", "6", "1"),
    Key("kafka.aggregates", types.TOPICS, "",
        "Aggregate types whose topics exist before their first event."),
    *_topic("kafka.aggregates.*", "<kafka.defaults.partitions>", "<kafka.defaults.replication_factor>"),

    Key("connect", types.SECTION, "", "Kafka Connect and the connector."),
    Key("connect.url", types.URL, "http://connect:8083", "REST address, with path prefix if there is one."),
    Key("connect.connector", types.CONNECT_NAME, "<pipeline>-outbox", "Name of the connector."),
    Key("connect.topic_prefix", types.CONNECT_NAME, "<pipeline>",
        "Debezium's topic.prefix; stored offsets are keyed by it."),
    Key("connect.auth", types.SECTION, "", "How to authenticate to the REST API. Empty: not at all."),
    Key("connect.auth.user", types.TEXT, "", "User of Basic authentication."),
    Key("connect.auth.password", types.TEXT, "", "Its password."),
    Key("connect.auth.bearer", types.TEXT, "", "Bearer token, instead of user and password."),
    Key("connect.auth.ca_file", types.TEXT, "", "CA certificate to verify the server with."),
    Key("connect.auth.cert_file", types.TEXT, "", "Client certificate."),
    Key("connect.auth.key_file", types.TEXT, "", "Key of the client certificate."),
    Key("connect.config", types.PROPERTIES, "",
        "Connector properties; they win over every property that the profile sets."),

    Key("watch", types.SECTION, "", "How the pipeline is watched."),
    Key("watch.ticker", types.TICKER, "10s",
        "Period of the heartbeat that `outboxctl watch` sends, 1s to 1h; off: the connector sends its "
        "own."),
    Key("watch.roles", types.IDENTIFIERS, "",
        "Roles that `outboxctl watch` runs as, besides the administrator's; they may write logical "
        "messages. Empty: the roles of outbox.writers."),
    Key("watch.warn", types.SECTION, "", "Warning threshold."),
    Key("watch.warn.seconds_left", types.DURATION, "4h", _LEFT),
    Key("watch.critical", types.SECTION, "", "Critical threshold."),
    Key("watch.critical.seconds_left", types.DURATION, "1h", _LEFT),
    Key("watch.groups", types.TEXTS, "", "Consumer groups to watch."),
    Key("watch.disk", types.SECTION, "", "Room for WAL."),
    Key("watch.disk.free_from", types.DISK, "unknown",
        "unknown, an absolute path to look at, or a size such as 200GB."),
)
# fmt: on


def _sections() -> Iterator[tuple[str, Mapping[str, Key]]]:
    for path in dict.fromkeys(key.path.rpartition(".")[0] for key in KEYS):
        inside = [key for key in KEYS if key.path.rpartition(".")[0] == path]
        yield path, {key.path.rpartition(".")[2]: key for key in inside}


SECTIONS: Final[Mapping[str, Mapping[str, Key]]] = dict(_sections())
