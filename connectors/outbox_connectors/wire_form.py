"""Tell whether a connector's configuration produces the contract's records, byte for byte.

The relay, `replay`, `recover` and `switch` write the contract's records. If the connector writes different
ones, an event could arrive twice with different keys, or with headers that its consumers do not know. The
rules below name each property that changes a record, and how; a property that is not known to be harmless
counts as one of them. Source: EventRouter and Kafka Connect as measured on Debezium 3.6.1 and 3.7.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from outbox_connectors.config_view import View, matches
from outbox_connectors.definition import Definition, Payload
from outbox_connectors.masking import shown
from outbox_connectors.profile import PLACEMENT

DEBEZIUM_POSTGRES: Final = "io.debezium.connector.postgresql.PostgresConnector"
_STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
_SIMPLE_HEADERS: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
_RAW_BYTES: Final = (
    "io.debezium.converters.BinaryDataConverter",
    "io.debezium.converters.ByteArrayConverter",
    "org.apache.kafka.connect.converters.ByteArrayConverter",
)
_MATCHES: Final = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
_EVERY_TYPE: Final = "(?<routedByValue>.*)"
_REFERENCE: Final = re.compile(r"\$\{[^}:]+:[^}]*\}")
_UTF_8: Final = ("UTF-8", "UTF8")


@dataclass(frozen=True, slots=True)
class Deviation:
    """A property that makes records differ from the contract's, and how they differ."""

    key: str
    value: str | None  # None: the property is absent; a secret is hidden
    changes: str

    def __str__(self) -> str:
        given = "is not set" if self.value is None else f"= {self.value}"
        return f"{self.key} {given}: {self.changes}"


def deviations(config: Mapping[str, str], definition: Definition) -> tuple[Deviation, ...]:
    """Find the properties that make a connector's records differ from the contract's. Pure.

    `config` is a complete configuration as Connect stores it. A value that Connect resolves on the worker
    (`${provider:...}`) is not known here, so it is a deviation in any property that affects records.
    """
    view = View(config, None, None, None)
    found = {
        key: _deviation(view, key, "its value is known to the worker alone")
        for key, value in config.items()
        if _REFERENCE.search(value) and _decides(view, key)
    }
    for rule in _RULES:
        for key, changes in rule(view, definition):
            found.setdefault(key, _deviation(view, key, changes))
    return tuple(found.values())


def header_names(config: Mapping[str, str], column: str) -> tuple[str, ...]:
    """Name the headers that may hold a column of the outbox, the most likely first.

    First EventRouter's own header `id` for the column it takes the id from (by default `id`), then those that
    `table.fields.additional.placement` adds, then the contract's name.
    """
    view = View(config, None, None, None)
    names = []
    for alias in view.routers:
        if column == (_option(view, alias, "table.field.event.id") or "id"):
            names.append("id")
        names += [name for of, place, name in placements(view, alias) if (of, place) == (column, "header")]
    return tuple(dict.fromkeys((*names, column)))


def placements(view: View, alias: str) -> Iterator[tuple[str, str, str]]:
    """Yield column, place and name of each valid entry of a router's `table.fields.additional.placement`."""
    for entry in view.names(f"transforms.{alias}.table.fields.additional.placement"):
        parts = [part.strip() for part in entry.split(":")]
        if len(parts) in (2, 3):
            yield parts[0], parts[1].lower(), parts[2] if len(parts) == 3 else parts[0]


# -- the rules: each yields a property and what it changes ------------------------------------------------

_Found = Iterator[tuple[str, str]]


def _connector(view: View, _: Definition) -> _Found:
    if view.get("connector.class") not in (DEBEZIUM_POSTGRES, "PostgresConnector", "Postgres"):
        yield "connector.class", "another connector makes other records"


def _converters(view: View, definition: Definition) -> _Found:
    if view.get("key.converter") != _STRING:
        yield "key.converter", "the key is not the text of aggregate_id, so it has another partition as well"
    wanted = _RAW_BYTES if definition.outbox.payload is Payload.BYTEA else (_STRING,)
    if view.get("value.converter") not in wanted:
        yield "value.converter", f"the value is not the {definition.outbox.payload} payload as it is"
    if view.get("header.converter") not in (_SIMPLE_HEADERS, _STRING):
        yield "header.converter", "header values are written in another form"
    for part in ("key", "value", "header"):
        encoding = f"{part}.converter.converter.encoding"  # the one option that StringConverter heeds
        if view.get(f"{part}.converter") == _STRING and view.get(encoding, "UTF-8").upper() not in _UTF_8:
            yield encoding, "text is written in another encoding"


def _extended_headers(view: View, _: Definition) -> _Found:
    if view.get("extended.headers.enabled", "true").lower() != "false":
        yield "extended.headers.enabled", "Debezium puts headers of its own before id"


def _chain(view: View, _: Definition) -> _Found:
    if len(view.routers) != 1:
        yield "transforms", f"{len(view.routers)} EventRouters, where the contract has one"
    for alias in view.names("transforms"):
        if alias not in view.routers:
            yield f"transforms.{alias}.type", "another transformation changes records or their headers"


def _predicate(view: View, definition: Definition) -> _Found:
    for alias in view.routers:
        name = _option(view, alias, "predicate")
        if not name:
            continue
        if _option(view, alias, "negate").lower() == "true":
            yield f"transforms.{alias}.negate", "rows of the outbox are not routed"
        key = f"predicates.{name}.pattern"
        topic = f"{view.get('topic.prefix')}.{definition.outbox.table}"
        if name not in view.names("predicates") or view.get(f"predicates.{name}.type") != _MATCHES:
            yield f"transforms.{alias}.predicate", "not known which rows are routed"
        elif matches(view.get(key), topic) is not True:
            yield key, f"does not match {topic}, so rows of the outbox are not routed"


_COLUMNS: Final = {
    "table.field.event.id": ("id", "id", "header id is another column"),
    "table.field.event.key": ("aggregateid", "aggregate_id", "the key is another column"),
    "table.field.event.payload": ("payload", "payload", "the value is another column"),
    "route.by.field": ("aggregatetype", "aggregate_type", "the topic follows another column"),
}
_SWITCHES: Final = {
    "table.expand.json.payload": ("true", "the value is no longer the payload as it was written"),
    "tracing.with.context.field.only": ("false", "tracing adds headers"),
}
_UNSET: Final = {
    "table.field.event.timestamp": "records have the time of a column",
    "table.field.event.schema.version": "the value has a schema of its own",
    "tracing.span.context.field": "tracing adds headers",
}


def _router(view: View, definition: Definition) -> _Found:
    for alias in view.routers:
        for name, (default, column, changes) in _COLUMNS.items():
            if (_option(view, alias, name) or default) != column:
                yield f"transforms.{alias}.{name}", changes
        for name, changes in _UNSET.items():
            if _option(view, alias, name):
                yield f"transforms.{alias}.{name}", changes
        for name, (bad, changes) in _SWITCHES.items():
            if _option(view, alias, name).lower() == bad:
                yield f"transforms.{alias}.{name}", changes
        yield from _placed(view, alias)
        yield from _routed(view, alias, definition)


def _placed(view: View, alias: str) -> _Found:
    key = f"transforms.{alias}.table.fields.additional.placement"
    if ",".join(":".join(entry) for entry in placements(view, alias)) != PLACEMENT:
        yield key, "the headers are others, or in another order"


def _routed(view: View, alias: str, definition: Definition) -> _Found:
    if (_option(view, alias, "route.topic.regex") or _EVERY_TYPE) != _EVERY_TYPE:
        yield f"transforms.{alias}.route.topic.regex", "topics are named by another rule"
        return
    replacement = _option(view, alias, "route.topic.replacement") or "outbox.event.${routedByValue}"
    if replacement.replace("$1", "${routedByValue}") != definition.kafka.topic_of("${routedByValue}"):
        yield f"transforms.{alias}.route.topic.replacement", f"topics are not {definition.kafka.topic}"


_VALUES: Final = {
    "topic.naming.strategy": (
        ("io.debezium.schema.SchemaTopicNamingStrategy",),
        "the predicate and the router see other topics",
    ),
    "topic.delimiter": ((".",), "the predicate and the router see other topics"),
    "time.precision.mode": (("adaptive", "adaptive_time_microseconds"), "times may have another form"),
}


def _modes(view: View, definition: Definition) -> _Found:
    for key, (good, changes) in _VALUES.items():
        if key in view.config and view.get(key).lower() not in [value.lower() for value in good]:
            yield key, changes
    if definition.outbox.payload is Payload.BYTEA and view.get("binary.handling.mode", "bytes") != "bytes":
        yield "binary.handling.mode", "a bytea payload is turned into text"


def _unknown(view: View, _: Definition) -> _Found:
    for key in view.config:
        if key.startswith(("transforms", "predicates")) or key in _JUDGED or _harmless(key):
            continue
        if key.startswith(_READ):
            yield key, "columns may be left out, changed or read by another statement"
        elif key.startswith("producer.override."):
            yield key, "records may go to other partitions, to another cluster or through an interceptor"
        elif key in ("converters", "post.processors"):
            yield key, "values are changed before the router sees them"
        elif not key.startswith(_CONVERTERS):
            yield key, "it is not known whether it changes records"


_CONVERTERS: Final = ("key.converter", "value.converter", "header.converter")
_JUDGED: Final = frozenset(
    (*_VALUES, "connector.class", "extended.headers.enabled", "binary.handling.mode")  # by the rules above
)
_READ: Final = ("column.", "snapshot.select.statement.overrides")
# Properties without any effect on an event's record: where and how fast the log is read, error handling,
# other kinds of records, column types that the outbox does not have.
_HARMLESS_BEGINNINGS: Final = (
    "config.action.",
    "connection.",
    "connector.client.",
    "custom.metric.",
    "database.",
    "datatype.",
    "driver.",
    "errors.",
    "event.converting.",
    "event.processing.",
    "executor.",
    "flush.",
    "guardrail.",
    "heartbeat.",
    "include.",
    "incremental.",
    "lsn.",
    "max.",
    "message.prefix.",
    "notification.",
    "offset.",
    "offsets.",
    "openlineage.",
    "publication.",
    "publish.",
    "retriable.",
    "schema.exclude.",
    "schema.include.",
    "schema.refresh.",
    "signal.",
    "snapshot.",
    "statistics.",
    "status.",
    "table.exclude.",
    "table.ignore.",
    "table.include.",
    "tasks.",
    "topic.cache.",
    "topic.creation.",
    "topic.heartbeat.",
    "transaction.boundary.",
    "xmin.",
)
_HARMLESS: Final = frozenset(
    (
        "connector.plugin.version",
        "decimal.handling.mode",
        "exactly.once.support",
        "field.name.adjustment.mode",
        "hstore.handling.mode",
        "interval.handling.mode",
        "message.key.columns",  # the router gives the record another key
        "money.fraction.digits",
        "name",
        "plugin.name",
        "poll.interval.ms",
        "provide.transaction.metadata",
        "query.fetch.size",
        "read.only",
        "replica.identity.autoset.values",
        "sanitize.field.names",
        "schema.name.adjustment.mode",
        "skip.messages.without.change",
        "skipped.operations",
        "slot.drop.on.stop",
        "slot.failover",
        "slot.max.retries",
        "slot.name",
        "slot.retry.delay.ms",
        "sourceinfo.struct.maker",
        "tombstones.on.delete",
        "topic.prefix",
        "topic.transaction",
        "transaction.boundary",
        "unavailable.value.placeholder",
    )
)
_HARMLESS_TO_A_PRODUCER: Final = (
    "acks",
    "batch.size",
    "buffer.memory",
    "client.",
    "compression.",
    "connections.",
    "delivery.timeout.ms",
    "enable.idempotence",
    "linger.ms",
    "max.",
    "metadata.",
    "receive.",
    "reconnect.",
    "request.timeout.ms",
    "retries",
    "retry.",
    "sasl.",
    "security.",
    "send.",
    "socket.",
    "ssl.",
    "transaction.timeout.ms",
)


def _harmless(key: str) -> bool:
    option = key.removeprefix("producer.override.")
    if option != key:
        return option.startswith(_HARMLESS_TO_A_PRODUCER)
    return key in _HARMLESS or (key.startswith(_HARMLESS_BEGINNINGS) and not key.startswith(_READ))


def _decides(view: View, key: str) -> bool:
    """Tell whether a property can change an event's record."""
    if key.startswith("transforms."):
        return key.split(".")[1] in view.names("transforms")
    if key.startswith("predicates."):
        return key.split(".")[1] in [_option(view, alias, "predicate") for alias in view.routers]
    return not _harmless(key)


def _option(view: View, alias: str, name: str) -> str:
    return view.get(f"transforms.{alias}.{name}")


def _deviation(view: View, key: str, changes: str) -> Deviation:
    value = view.config.get(key)
    return Deviation(key, None if value is None else shown(key, value), changes)


_RULES: Final[tuple[Callable[[View, Definition], _Found], ...]] = (
    _connector,
    _converters,
    _extended_headers,
    _chain,
    _predicate,
    _router,
    _modes,
    _unknown,
)
