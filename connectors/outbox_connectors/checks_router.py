"""Check the EventRouter: aliases, predicate, placements, routing, converters.

Connect's own validation accepts most typing errors in these properties.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from outbox_connectors.checks_values import MEASURED, C, W
from outbox_connectors.config_view import ROUTER, View, matches
from outbox_connectors.findings import Finding
from outbox_connectors.nearest_word import nearest
from outbox_connectors.profile import PLACEMENT

ROUTER_KEYS: Final = frozenset(
    (
        "type",
        "predicate",
        "negate",
        "plugin.version",
        "table.field.event.id",
        "table.field.event.key",
        "table.field.event.type",
        "table.field.event.payload",
        "table.field.event.timestamp",
        "table.field.event.schema.version",
        "table.fields.additional.placement",
        "table.field.additional.missing",
        "table.op.invalid.behavior",
        "table.expand.json.payload",
        "table.json.payload.null.behavior",
        "table.json.payload.empty.array.behavior",
        "route.by.field",
        "route.topic.regex",
        "route.topic.replacement",
        "route.tombstone.on.empty.payload",
        "tracing.span.context.field",
        "tracing.operation.name",
        "tracing.with.context.field.only",
    )
)
_ENUMS: Final = {
    "table.op.invalid.behavior": ("warn", "error", "fatal"),
    "table.field.additional.missing": ("error", "ignore"),
    "table.json.payload.null.behavior": ("ignore", "optional_bytes"),
    "table.json.payload.empty.array.behavior": ("ignore", "optional_string"),
}
_CONTRACT: Final = {
    "table.field.event.id": ("id", "id"),
    "table.field.event.key": ("aggregateid", "aggregate_id"),
    "table.field.event.payload": ("payload", "payload"),
    "route.by.field": ("aggregatetype", "aggregate_type"),
}
_STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
_ESCAPED: Final = re.compile(r"\\(.)")
_PLAIN: Final = r"\1"
_REMOVED: Final = "io.debezium.converters.ByteBufferConverter"  # in Debezium 2
_KAFKA_BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
_BINARY: Final = (
    "io.debezium.converters.BinaryDataConverter",
    "io.debezium.converters.ByteArrayConverter",
)


def _option(view: View, alias: str, key: str) -> str:
    return view.get(f"transforms.{alias}.{key}")


def _no_router(view: View) -> Iterator[Finding]:
    if not view.routers:
        cause = "no EventRouter in transforms: rows stay on the table's own topic, and the state is RUNNING"
        yield Finding("no-router", C, cause, f"list an alias of type {ROUTER}", MEASURED)


def _undefined_aliases(view: View) -> Iterator[Finding]:
    for kind in ("transforms", "predicates"):
        listed = view.names(kind)
        used = {key.split(".")[1] for key in view.config if key.startswith(f"{kind}.")}
        for alias in sorted(used - set(listed)):
            cause = f"{kind}.{alias}.* is ignored: {alias} is not listed in {kind}"
            remedy = nearest(alias, listed) if listed else f"set {kind}={alias}"
            yield Finding("unlisted-alias", C, cause, remedy, MEASURED)
        for alias in listed:
            if not view.get(f"{kind}.{alias}.type"):
                cause = f"{kind} lists {alias}, which has no type"
                yield Finding("untyped-alias", C, cause, f"set {kind}.{alias}.type", MEASURED)


def _unknown_keys(view: View) -> Iterator[Finding]:
    for alias in view.routers:
        prefix = f"transforms.{alias}."
        for key in view.config:
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and name not in ROUTER_KEYS:
                cause = f"{key} is not an option of EventRouter, so it is ignored"
                yield Finding("unknown-router-key", C, cause, nearest(name, ROUTER_KEYS), MEASURED)


def _predicate(view: View) -> Iterator[Finding]:
    for alias in view.routers:
        name = _option(view, alias, "predicate")
        if not name:
            several = len(view.names("table.include.list")) > 1 or view.get("signal.data.collection")
            severity = C if several else W
            cause = "EventRouter has no predicate: the first row of any other table fails the task"
            remedy = f"set transforms.{alias}.predicate to a TopicNameMatches of the outbox"
            yield Finding("no-predicate", severity, cause, remedy, MEASURED)
        elif name not in view.names("predicates"):
            cause = f"predicate {name} is not listed in predicates, which fails the task"
            yield Finding(
                "undefined-predicate",
                C,
                cause,
                f"set predicates={','.join((*view.names('predicates'), name))}",
                MEASURED,
            )
        else:
            yield from _pattern(view, alias, name)


def _pattern(view: View, alias: str, name: str) -> Iterator[Finding]:
    negated = view.get(f"transforms.{alias}.negate").lower() == "true"
    pattern, tables = view.get(f"predicates.{name}.pattern"), view.names("table.include.list")
    if not pattern or len(tables) != 1:
        return
    topic = f"{view.get('topic.prefix')}.{_ESCAPED.sub(_PLAIN, tables[0])}"
    if matches(pattern, topic) is negated:
        cause = f"predicates.{name}.pattern does not match {topic}: rows stay there, unrouted"
        if negated:
            cause = f"transforms.{alias}.negate=true keeps {topic} from the router: rows stay there, unrouted"
        remedy = "match <topic.prefix>.<schema>.<table>, the topic before routing"
        yield Finding("predicate-pattern", C, cause, remedy, MEASURED)


def _placements(view: View) -> Iterator[Finding]:
    for alias in view.routers:
        placed = []
        for entry in view.names(f"transforms.{alias}.table.fields.additional.placement"):
            parts = [part.strip() for part in entry.split(":")]
            place = parts[1].lower() if len(parts) in (2, 3) else ""
            if place not in ("header", "envelope", "partition"):
                cause = f"placement {entry} fails the task: it is column:header, column:envelope or a third"
                yield Finding("placement", C, cause, "write column:header:name", MEASURED)
            elif place != "header":
                yield from _other_place(entry, place)
            elif parts[-1] == "id":
                cause = f"placement {entry} adds a second header id"
                yield Finding("placement", C, cause, "remove it, the router adds one", MEASURED)
            placed.append(f"{parts[0]}:{place}:{parts[2] if len(parts) == 3 else parts[0]}")
        missing = [entry for entry in PLACEMENT.split(",") if entry not in placed]
        if missing:
            names = ", ".join(entry.partition(":")[0] for entry in missing)
            cause = f"the contract's headers are not all placed: {names}"
            remedy = f"set transforms.{alias}.table.fields.additional.placement={PLACEMENT}"
            yield Finding("contract-headers", C, cause, remedy, "the contract")
        elif placed[: len(PLACEMENT.split(","))] != PLACEMENT.split(","):
            cause = "the contract's headers are placed in another order"
            yield Finding("contract-headers", W, cause, f"use {PLACEMENT}", "the contract")


def _other_place(entry: str, place: str) -> Iterator[Finding]:
    if place == "envelope":
        cause = f"placement {entry} wraps the payload: the value is no longer what was written"
    else:
        cause = f"placement {entry} chooses partitions by hand: a number beyond the topic's blocks everything"
    yield Finding("placement", C, cause, "place it as a header", MEASURED)


def _enums(view: View) -> Iterator[Finding]:
    for alias in view.routers:
        for key, words in _ENUMS.items():
            value = _option(view, alias, key)
            if value and value.lower() not in words:
                cause = f"transforms.{alias}.{key}={value} fails the task at its start"
                yield Finding("router-value", C, cause, nearest(value, words), MEASURED)
        behavior = _option(view, alias, "table.op.invalid.behavior") or "warn"
        if behavior.lower() in ("warn", "error"):
            cause = "an UPDATE of the outbox is dropped with a line in the log"
            remedy = f"set transforms.{alias}.table.op.invalid.behavior=fatal"
            yield Finding("op-invalid-behavior", W, cause, remedy, "Debezium documentation")


def _routing(view: View) -> Iterator[Finding]:
    for alias in view.routers:
        regex = _option(view, alias, "route.topic.regex") or "(?<routedByValue>.*)"
        known = matches(regex, "order")
        if known is None:
            cause = f"route.topic.regex={regex} is no regular expression, which fails the task"
            yield Finding("route-regex", C, cause, "remove it", MEASURED)
        elif not known:
            cause = (
                f"route.topic.regex={regex} does not match every type: those go to a topic of their bare name"
            )
            yield Finding("route-regex", W, cause, "remove it", MEASURED)
        replacement = _option(view, alias, "route.topic.replacement")
        for group in re.findall(r"\$\{(\w+)\}", replacement):
            if f"(?<{group}>" not in regex:
                cause = f"route.topic.replacement uses {group}, which route.topic.regex has not"
                yield Finding("route-regex", C, cause, "use ${routedByValue}", MEASURED)
        for key, (default, column) in _CONTRACT.items():
            value = _option(view, alias, key) or default
            if value != column:
                cause = f"{key} is {value}, the contract's column is {column}"
                remedy = f"set transforms.{alias}.{key}={column}"
                yield Finding("contract-columns", C, cause, remedy, "the contract")


def _shapes(view: View) -> Iterator[Finding]:
    for alias in view.routers:
        if _option(view, alias, "table.expand.json.payload").lower() == "true":
            cause = "table.expand.json.payload drops null members and empty arrays, and fails on mixed arrays"
            yield Finding(
                "expand-json", C, cause, "remove it: the text of a jsonb travels as it is", MEASURED
            )
        column = _option(view, alias, "table.field.event.timestamp")
        live = view.table.column(column) if view.table and column else None
        if (column == "occurred_at" and view.table is None) or (
            live is not None and "with time zone" in live.sql_type
        ):
            cause = f"table.field.event.timestamp={column} is a timestamptz, which fails the task"
            yield Finding("timestamp-column", C, cause, "remove it: occurred_at is a header", MEASURED)


def _before_the_router(view: View) -> Iterator[Finding]:
    for alias in view.names("transforms"):
        kind = view.get(f"transforms.{alias}.type")
        if kind == ROUTER:
            return
        if kind.endswith("ExtractNewRecordState"):
            cause = f"{alias} unwraps rows before EventRouter sees them: they pass it unrouted"
            yield Finding("unwrap-before-router", C, cause, f"remove {alias}", "EventRouter")


_WITH_DELEGATE: Final = (
    f"set value.converter={_BINARY[0]} and "
    "value.converter.delegate.converter.type=org.apache.kafka.connect.json.JsonConverter and "
    "value.converter.delegate.converter.type.schemas.enable=false"
)
_TEXT_TYPES: Final = ("json", "jsonb", "text", "character varying")
_ASK_TYPE: Final = (
    "find out the type of the payload column: StringConverter destroys a bytea (its value becomes the name "
    "of a Java buffer), which takes BinaryDataConverter; and what the readers of its topics expect"
)


def _payload_type(view: View) -> str:
    """Return the type of the live payload column; empty if it is not known."""
    if view.table is None or not view.routers:
        return ""
    live = view.table.column(_option(view, view.routers[0], "table.field.event.payload") or "payload")
    return live.sql_type.partition("(")[0] if live else ""


def _value_converter(view: View) -> Iterator[Finding]:
    converter, kind = view.get("value.converter"), _payload_type(view)
    shown = f"value.converter={converter or '(absent)'}"
    as_text = (view.get("binary.handling.mode") or "bytes") != "bytes"
    if kind == "bytea" and not as_text:
        yield from _bytea(shown, converter)
    elif converter in _BINARY and kind == "":
        pass  # the payload is binary, as far as the configuration tells
    elif converter != _STRING:
        if kind in _TEXT_TYPES and _sets_contract(view):
            yield Finding(
                "value-converter",
                C,
                f"{shown} does not carry the payload's JSON as it is",
                f"set value.converter={_STRING}",
                MEASURED,
            )
        else:
            severity = W if converter else C
            text = "does not carry the payload as it is, or it may be binary"
            yield Finding("value-converter", severity, f"{shown} {text}", _ASK_TYPE, MEASURED)
    if converter in _BINARY and not view.get("value.converter.delegate.converter.type"):
        cause = "BinaryDataConverter without a delegate fails the task at the first heartbeat or message"
        remedy = "set value.converter.delegate.converter.type=org.apache.kafka.connect.json.JsonConverter"
        yield Finding("no-delegate", C, cause, remedy, MEASURED)
    if (kind == "bytea" or converter in _BINARY) and as_text:
        cause = f"binary.handling.mode={view.get('binary.handling.mode')} turns a bytea payload into text"
        remedy = f"set binary.handling.mode=bytes and {_WITH_DELEGATE.removeprefix('set ')}"
        yield Finding("binary-mode", C, cause, remedy, "Debezium documentation")


def _bytea(shown: str, converter: str) -> Iterator[Finding]:
    """Check the converter of a bytea payload: StringConverter and a removed class are never right."""
    if converter in (_STRING, _REMOVED):
        cause = f"{shown} cannot carry a bytea payload as it is"
        yield Finding("value-converter", C, cause, _WITH_DELEGATE, MEASURED)
    elif converter not in (*_BINARY, _KAFKA_BYTES):
        cause = f"{shown} writes a bytea payload in a form of its own"
        remedy = "nothing to do while the readers of its topics expect this form; the bytes as they are take "
        yield Finding("value-converter", W, cause, f"{remedy}BinaryDataConverter", MEASURED)


def _sets_contract(view: View) -> bool:
    return any(_option(view, alias, "route.by.field") == "aggregate_type" for alias in view.routers)


RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    _no_router,
    _undefined_aliases,
    _unknown_keys,
    _predicate,
    _placements,
    _enums,
    _routing,
    _shapes,
    _before_the_router,
    _value_converter,
)
