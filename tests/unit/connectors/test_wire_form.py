"""Every property that decides the form of a record is found, and no other one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from outbox_connectors import profile
from outbox_connectors.definition import Definition
from outbox_connectors.profile import Version, render
from outbox_connectors.wire_form import deviations, header_names
from unit.connectors.definitions import definition

V370 = Version.parse("3.7.0.Final")
TEXT = definition()
BYTES = definition("outbox: {payload: bytea}\n")
JSON = "org.apache.kafka.connect.json.JsonConverter"
STRING = "org.apache.kafka.connect.storage.StringConverter"
ROUTER = "transforms.outbox."
PLACEMENT = ROUTER + "table.fields.additional.placement"

Change = dict[str, str | None]


def found(change: Change, of: Definition = TEXT) -> list[str]:
    """Name the properties for which a changed profile makes other records; None removes a property."""
    merged = {**render(of, debezium=V370, postgres_major=18), **change}
    config = {key: value for key, value in merged.items() if value is not None}
    return [deviation.key for deviation in deviations(config, of)]


DECIDE: list[tuple[str, Change]] = [
    ("connector.class", {"connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector"}),
    ("key.converter", {"key.converter": JSON}),
    ("key.converter", {"key.converter": None}),
    ("key.converter", {"key.converter": "${env:CONVERTER}"}),
    ("key.converter.converter.encoding", {"key.converter.converter.encoding": "UTF-16"}),
    ("value.converter", {"value.converter": JSON}),
    ("value.converter", {"value.converter": "io.debezium.converters.BinaryDataConverter"}),
    ("header.converter", {"header.converter": JSON}),
    ("header.converter", {"header.converter": None}),
    ("extended.headers.enabled", {"extended.headers.enabled": "true"}),
    ("extended.headers.enabled", {"extended.headers.enabled": None}),
    ("transforms", {"transforms": ""}),
    ("transforms.more.type", {"transforms": "outbox,more", "transforms.more.type": "x.InsertField$Value"}),
    ("transforms.more.type", {"transforms": "more,outbox", "transforms.more.type": "x.Filter"}),
    (ROUTER + "predicate", {ROUTER + "predicate": "isOther"}),
    (ROUTER + "predicate", {"predicates.isOutbox.type": "x.RecordIsTombstone"}),
    (ROUTER + "negate", {ROUTER + "negate": "true"}),
    ("predicates.isOutbox.pattern", {"predicates.isOutbox.pattern": "other"}),
    ("predicates.isOutbox.pattern", {"predicates.isOutbox.pattern": "("}),
    ("predicates.isOutbox.pattern", {"predicates.isOutbox.pattern": "${file:/x:y}"}),
    ("predicates.isOutbox.pattern", {"table.include.list": "x", "topic.prefix": "other"}),
    (ROUTER + "table.field.event.id", {ROUTER + "table.field.event.id": "causation_id"}),
    (ROUTER + "table.field.event.key", {ROUTER + "table.field.event.key": None}),
    (ROUTER + "table.field.event.payload", {ROUTER + "table.field.event.payload": "headers"}),
    (ROUTER + "table.field.event.timestamp", {ROUTER + "table.field.event.timestamp": "occurred_at"}),
    (ROUTER + "table.field.event.schema.version", {ROUTER + "table.field.event.schema.version": "v"}),
    (ROUTER + "route.by.field", {ROUTER + "route.by.field": "event_type"}),
    (ROUTER + "route.topic.regex", {ROUTER + "route.topic.regex": "(.*)"}),
    (ROUTER + "route.topic.replacement", {ROUTER + "route.topic.replacement": "x.${routedByValue}"}),
    (ROUTER + "table.expand.json.payload", {ROUTER + "table.expand.json.payload": "true"}),
    (ROUTER + "tracing.with.context.field.only", {ROUTER + "tracing.with.context.field.only": "false"}),
    (ROUTER + "tracing.span.context.field", {ROUTER + "tracing.span.context.field": "headers"}),
    (PLACEMENT, {PLACEMENT: None}),
    (PLACEMENT, {PLACEMENT: "event_type:header:eventType"}),
    (PLACEMENT, {PLACEMENT: profile.PLACEMENT + ",id:header:event_id"}),
    (PLACEMENT, {PLACEMENT: profile.PLACEMENT.replace("headers:header", "headers:envelope")}),
    ("time.precision.mode", {"time.precision.mode": "connect"}),
    ("topic.naming.strategy", {"topic.naming.strategy": "x.Y"}),
    ("topic.delimiter", {"topic.delimiter": "-"}),
    ("column.exclude.list", {"column.exclude.list": "public.outbox.headers"}),
    ("column.mask.with.4.chars", {"column.mask.with.4.chars": "public.outbox.payload"}),
    ("snapshot.select.statement.overrides", {"snapshot.select.statement.overrides": "public.outbox"}),
    ("converters", {"converters": "own"}),
    ("post.processors", {"post.processors": "reselector"}),
    ("producer.override.partitioner.class", {"producer.override.partitioner.class": "x.Y"}),
    ("producer.override.partitioner.ignore.keys", {"producer.override.partitioner.ignore.keys": "true"}),
    ("producer.override.interceptor.classes", {"producer.override.interceptor.classes": "x.Y"}),
    ("producer.override.bootstrap.servers", {"producer.override.bootstrap.servers": "other:9092"}),
    ("slot.stream.params", {"slot.stream.params": "binary=true"}),
    ("who.knows", {"who.knows": "x"}),
]


@pytest.mark.parametrize(("key", "change"), DECIDE, ids=lambda value: str(value)[:60])
def test_what_decides_is_named_with_its_effect(key: str, change: Change) -> None:
    assert found(change) == [key]
    config = {k: v for k, v in {**render(TEXT, debezium=V370, postgres_major=18), **change}.items() if v}
    (one,) = (str(deviation) for deviation in deviations(config, TEXT))
    assert one.startswith(key)
    assert len(one) > len(key) + 20
    assert "\n" not in one


HARMLESS: list[Change] = [
    {},
    {"max.batch.size": "17", "max.queue.size": "100", "poll.interval.ms": "50"},
    {"snapshot.mode": "initial", "snapshot.fetch.size": "10", "snapshot.max.threads": "1"},
    {"name": "other", "slot.name": "other", "publication.name": "other", "tasks.max": "1"},
    {"database.password": "${file:/secret:password}", "database.hostname": "${env:HOST}"},
    {"producer.override.linger.ms": "5", "producer.override.compression.type": "zstd"},
    {"producer.override.sasl.jaas.config": "${file:/secret:jaas}"},
    {"heartbeat.interval.ms": "1000", "heartbeat.action.query": "SELECT 1", "errors.tolerance": "all"},
    {"topic.creation.default.partitions": "9", "message.prefix.include.list": "other"},
    {"decimal.handling.mode": "string", "tombstones.on.delete": "true", "binary.handling.mode": "hex"},
    {"time.precision.mode": "adaptive", "provide.transaction.metadata": "true"},
    {"exactly.once.support": "required", "transaction.boundary": "poll", "skipped.operations": "t"},
    {"header.converter": STRING, "key.converter.schemas.enable": "true"},
    {"value.converter.converter.encoding": "utf-8"},
    {ROUTER + "predicate": None},
    {ROUTER + "route.topic.replacement": "outbox.event.$1"},
    {ROUTER + "route.tombstone.on.empty.payload": "true", ROUTER + "table.op.invalid.behavior": "warn"},
    {ROUTER + "table.field.event.type": "anything", ROUTER + "table.json.payload.null.behavior": "ignore"},
    {"transforms.unlisted.type": "x.Y", "predicates.unused.pattern": "${file:/x:y}"},
    {PLACEMENT: ", ".join(entry.rpartition(":")[0] for entry in profile.PLACEMENT.split(","))},
]


@pytest.mark.parametrize("change", HARMLESS, ids=lambda value: " ".join(value)[:60] or "nothing")
def test_what_does_not_decide_is_not_named(change: Change) -> None:
    assert found(change) == []


def test_an_alias_is_only_a_name() -> None:
    config = {
        key.replace("transforms.outbox.", "transforms.router."): value
        for key, value in render(TEXT, debezium=V370, postgres_major=18).items()
    }
    assert deviations({**config, "transforms": "router"}, TEXT) == ()


def test_a_binary_payload_has_converters_of_its_own() -> None:
    assert found({}, BYTES) == []
    assert found({"value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter"}, BYTES) == []
    assert found({"value.converter.delegate.converter.type.schemas.enable": "true"}, BYTES) == []
    assert found({"value.converter": STRING}, BYTES) == ["value.converter"]
    assert found({"binary.handling.mode": "base64"}, BYTES) == ["binary.handling.mode"]


def test_everything_that_the_profile_can_set_is_judged() -> None:
    """A property that is added to the profile has to be known here, or every pipeline would be refused."""
    entries = yaml.safe_load((Path(profile.__file__).parent / "event_router.yaml").read_text("utf-8"))
    known = {key: "x" for key in (entry["key"] for entry in entries) if not key.startswith("transforms")}
    unknown = [one.key for one in deviations(known, TEXT) if "it is not known whether" in one.changes]
    assert unknown == []


def test_a_secret_is_not_shown() -> None:
    config = {**render(TEXT, debezium=V370, postgres_major=18), "my.password": "hunter2"}
    (one,) = deviations(config, TEXT)
    assert "hunter2" not in str(one)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, ("id",)),
        ({PLACEMENT: "id:header:event_id"}, ("id", "event_id")),
        ({PLACEMENT: "id : header : event_id, id:header"}, ("id", "event_id")),
        ({PLACEMENT: "id:header:event_id", ROUTER + "table.field.event.id": "other"}, ("event_id", "id")),
        ({"transforms": ""}, ("id",)),
    ],
)
def test_the_headers_of_the_id(change: dict[str, str], names: tuple[str, ...]) -> None:
    config = {**render(TEXT, debezium=V370, postgres_major=18), **change}
    assert header_names(config, "id") == names


def test_the_headers_of_another_column() -> None:
    config = {**render(TEXT, debezium=V370, postgres_major=18), PLACEMENT: "occurred_at:header:when"}
    assert header_names(config, "occurred_at") == ("when", "occurred_at")
