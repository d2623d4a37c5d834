"""Each finding fires on the mistake it is about and on nothing that the profile renders."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from outbox_connectors import checks_values
from outbox_connectors.checks import CapturedTable, Severity, TableColumn, check, releases, retention, worst
from outbox_connectors.errors import ExitCode
from outbox_connectors.profile import Version, render
from outbox_connectors.record import COLUMNS
from unit.connectors.definitions import definition

PACKAGE = Path(checks_values.__file__).parent
V36, V370, V371 = (Version.parse(text) for text in ("3.6.3.Final", "3.7.0.Final", "3.7.1.Final"))
ROUTER = "transforms.outbox."
PLACEMENT = ROUTER + "table.fields.additional.placement"

GOOD = render(definition(), debezium=V370, postgres_major=18)
BINARY = render(definition("outbox: {payload: bytea}\n"), debezium=V370, postgres_major=18)
HEARTBEAT = render(definition("watch: {ticker: off}\n"), debezium=V370, postgres_major=18)

Change = dict[str, str | None]


def changed(config: dict[str, str], change: Change) -> dict[str, str]:
    """Apply a change; None removes the key."""
    merged = {**config, **change}
    return {key: value for key, value in merged.items() if value is not None}


def fires(code: str, config: dict[str, str], change: Change, debezium: Version = V370) -> None:
    found = check(changed(config, change), debezium=debezium, postgres_major=18)
    assert code in {finding.code for finding in found}
    for finding in found:
        assert finding.cause
        assert finding.remedy
        assert finding.source
        assert "\n" not in finding.cause + finding.remedy


CASES: list[tuple[str, Change]] = [
    ("connector-class", {"connector.class": "io.debezium.connector.mysql.MySqlConnector"}),
    ("tasks-max", {"tasks.max": "4"}),
    ("plugin-name", {"plugin.name": None}),
    ("plugin-name", {"plugin.name": "decoderbufs"}),
    ("slot-drop-on-stop", {"slot.drop.on.stop": "true"}),
    ("publication-autocreate", {"publication.autocreate.mode": None}),
    ("publication-autocreate", {"publication.autocreate.mode": "filtered"}),
    ("lsn-flush-mode", {"lsn.flush.mode": "connector_and_driver"}),
    ("lsn-flush-mode", {"lsn.flush.mode": "manual"}),
    ("flush-lsn-source", {"flush.lsn.source": "false"}),
    ("lsn-flush-timeout", {"lsn.flush.timeout.action": "ignore"}),
    ("transaction-metadata", {"provide.transaction.metadata": "true"}),
    ("errors-tolerance", {"errors.tolerance": "all"}),
    ("event-failures", {"event.processing.failure.handling.mode": "skip"}),
    ("conversion-failures", {"event.converting.failure.handling.mode": None}),
    ("logged-payloads", {"errors.log.include.messages": "true"}),
    ("guardrail", {"guardrail.collections.limit.action": None}),
    ("guardrail", {"guardrail.collections.max": "0"}),
    ("extended-headers", {"extended.headers.enabled": None}),
    ("tombstones-on-delete", {"tombstones.on.delete": None}),
    ("producer-acks", {"producer.override.acks": "1"}),
    ("producer-idempotence", {"producer.override.enable.idempotence": "false"}),
    ("key-converter", {"key.converter": "org.apache.kafka.connect.json.JsonConverter"}),
    ("key-converter", {"key.converter": None}),
    ("header-converter", {"header.converter": "org.apache.kafka.connect.json.JsonConverter"}),
    ("topic-prefix", {"topic.prefix": None}),
    ("slot-name", {"slot.name": None}),
    ("slot-name", {"slot.name": "My-Slot"}),
    ("publication-name", {"publication.name": None}),
    ("table-include-list", {"table.include.list": None}),
    ("table-include-list", {"table.include.list": "outbox"}),
    ("table-regex", {"table.include.list": "public.outbox"}),
    ("skipped-inserts", {"skipped.operations": "c,u"}),
    ("snapshot-mode", {"snapshot.mode": None}),
    ("snapshot-mode", {"snapshot.mode": "when_needed"}),
    ("snapshot-threads", {"snapshot.mode": "initial", "snapshot.max.threads": "4"}),
    ("offset-mismatch-strategy", {"offset.mismatch.strategy": "trust_slot"}),
    ("offset-mismatch-strategy", {"offset.mismatch.strategy": "trust_offset"}),
    ("offset-mismatch-strategy", {"offset.mismatch.strategy": "no_validaton"}),
    ("slot-retry-delay", {"slot.retry.delay.ms": None}),
    ("unlimited-retries", {"errors.max.retries": None}),
    ("unlimited-retries", {"errors.max.retries": "-5"}),
    ("poll-interval", {"poll.interval.ms": None}),
    ("queue-bytes", {"max.queue.size.in.bytes": None}),
    ("queue-size", {"max.queue.size": "2048"}),
    ("status-interval", {"status.update.interval.ms": "60000"}),
    ("request-limit", {"producer.override.max.request.size": "10000"}),
    ("topic-limit", {"topic.creation.default.max.message.bytes": "500000"}),
    ("max-block", {"producer.override.max.block.ms": "5000"}),
    (
        "topic-creation",
        {"topic.creation.default.partitions": None, "topic.creation.default.replication.factor": None},
    ),
    ("topic-creation", {"topic.creation.default.replication.factor": None}),
    ("literal-secret", {"database.password": "hunter2"}),
    ("literal-secret", {"producer.override.sasl.jaas.config": "... password='x';"}),
    ("no-tls", {"database.hostname": "db.example.org"}),
    ("unchecked-option", {"slot.stream.params": "proto_version=2"}),
    ("unchecked-option", {"column.exclude.list": "public.outbox.payload"}),
    ("misspelt-value", {"read.only": "ture"}),
    ("misspelt-option", {"poll.intervals.ms": "10"}),
    ("misspelt-option", {"slotname": "x"}),
    ("bare-heartbeat", {"heartbeat.interval.ms": "10000"}),
    ("heartbeat-query-unused", {"heartbeat.action.query": "SELECT 1"}),
    (
        "heartbeat-query",
        {"heartbeat.interval.ms": "10000", "heartbeat.action.query": "UPDATE hb SET t=1"},
    ),
    (
        "heartbeat-query",
        {
            "heartbeat.interval.ms": "10000",
            "heartbeat.action.query": "SELECT pg_logical_emit_message(true, 'x', '')",
        },
    ),
    ("heartbeat-too-often", {"heartbeat.interval.ms": "5000"}),
    ("excluded-ticks", {"message.prefix.include.list": None, "message.prefix.exclude.list": "x"}),
    ("no-heartbeat", {"message.prefix.include.list": None}),
    ("message-prefixes", {"message.prefix.exclude.list": "x"}),
    ("foreign-messages", {"message.prefix.include.list": None}),
    ("no-router", {"transforms": None}),
    ("unlisted-alias", {"transforms": "outBox", "transforms.outBox.type": "x"}),
    ("untyped-alias", {"transforms": "outbox,other"}),
    ("unknown-router-key", {ROUTER + "route.topic.replacment": "x"}),
    ("no-predicate", {ROUTER + "predicate": None}),
    ("undefined-predicate", {ROUTER + "predicate": "isOutbx"}),
    ("predicate-pattern", {"predicates.isOutbox.pattern": "outbox"}),
    ("predicate-pattern", {ROUTER + "negate": "true"}),
    ("placement", {PLACEMENT: GOOD[PLACEMENT] + ",x:haeder:x"}),
    ("placement", {PLACEMENT: GOOD[PLACEMENT] + ",x"}),
    ("placement", {PLACEMENT: GOOD[PLACEMENT] + ",x:envelope"}),
    ("placement", {PLACEMENT: GOOD[PLACEMENT] + ",x:partition"}),
    ("placement", {PLACEMENT: GOOD[PLACEMENT] + ",id:header:id"}),
    ("contract-headers", {PLACEMENT: "event_type:header:event_type"}),
    ("contract-headers", {PLACEMENT: ",".join(reversed(GOOD[PLACEMENT].split(",")))}),
    ("router-value", {ROUTER + "table.op.invalid.behavior": "fatel"}),
    ("op-invalid-behavior", {ROUTER + "table.op.invalid.behavior": None}),
    ("route-regex", {ROUTER + "route.topic.regex": "("}),
    ("route-regex", {ROUTER + "route.topic.regex": "x(?<routedByValue>.*)"}),
    ("route-regex", {ROUTER + "route.topic.replacement": "outbox.${routedByVal}"}),
    ("contract-columns", {ROUTER + "route.by.field": None}),
    ("contract-columns", {ROUTER + "table.field.event.id": "event_id"}),
    ("expand-json", {ROUTER + "table.expand.json.payload": "true"}),
    ("timestamp-column", {ROUTER + "table.field.event.timestamp": "occurred_at"}),
    (
        "unwrap-before-router",
        {
            "transforms": "unwrap,outbox",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        },
    ),
    ("value-converter", {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}),
    ("value-converter", {"value.converter": None}),
]


@pytest.mark.parametrize(("code", "change"), CASES)
def test_a_mistake_is_found(code: str, change: Change) -> None:
    fires(code, GOOD, change)


BINARY_CASES: list[tuple[str, Change]] = [
    ("no-delegate", {"value.converter.delegate.converter.type": None}),
    ("binary-mode", {"binary.handling.mode": "base64"}),
]


@pytest.mark.parametrize(("code", "change"), BINARY_CASES)
def test_a_mistake_with_a_binary_payload_is_found(code: str, change: Change) -> None:
    fires(code, BINARY, change)


def test_a_bare_heartbeat_is_worse_on_36() -> None:
    bare = changed(HEARTBEAT, {"heartbeat.action.query": None})
    for version, severity in ((V36, Severity.CRITICAL), (V370, Severity.WARNING), (V371, Severity.WARNING)):
        found = {f.code: f.severity for f in check(bare, debezium=version)}
        assert found["bare-heartbeat"] is severity


def test_a_filtered_publication_meets_a_bug_of_36() -> None:
    change: Change = {"publication.autocreate.mode": "filtered"}
    fires("filtered-publication", GOOD, change, V36)
    assert "filtered-publication" not in {f.code for f in check(changed(GOOD, change), debezium=V370)}


def test_a_second_table_makes_the_predicate_critical() -> None:
    change: Change = {ROUTER + "predicate": None, "table.include.list": r"public\.outbox,public\.signal"}
    found = {f.code: f.severity for f in check(changed(GOOD, change))}
    assert found["no-predicate"] is Severity.CRITICAL


def test_failover_needs_postgresql_17() -> None:
    assert "slot-failover" in {f.code for f in check(GOOD, postgres_major=16)}
    assert "slot-failover" not in {f.code for f in check(GOOD, postgres_major=17)}


@pytest.mark.parametrize("debezium", [V36, V370, V371], ids=str)
@pytest.mark.parametrize("ticker", ["10s", "off"])
@pytest.mark.parametrize("payload", ["jsonb", "bytea"])
@pytest.mark.parametrize("partition", ["none", "daily"])
@pytest.mark.parametrize("major", [14, 18])
def test_what_the_profile_renders_is_clean(
    debezium: Version, ticker: str, payload: str, partition: str, major: int
) -> None:
    extra = f"outbox: {{payload: {payload}, partition: {partition}, table: My-Schema.Out_box}}\n"
    extra += f"watch: {{ticker: {ticker}}}\n"
    extra += "connect: {topic_prefix: a.b}\n"
    config = render(definition(extra), debezium=debezium, postgres_major=major)
    table = replace(TABLE, columns=with_column("payload", sql_type=payload), partitioned=partition != "none")
    assert check(config, debezium=debezium, postgres_major=major, table=table) == []


# -- the table ---------------------------------------------------------------------------------------

TABLE = CapturedTable(
    tuple(
        TableColumn(c.name, c.sql_type.replace("timestamptz", "timestamp with time zone"), c.nullable)
        for c in COLUMNS
    )
)


def with_column(
    name: str, *, sql_type: str | None = None, nullable: bool | None = None, default: str = ""
) -> tuple[TableColumn, ...]:
    return tuple(
        TableColumn(
            c.name,
            sql_type if sql_type and c.name == name else c.sql_type,
            nullable if nullable is not None and c.name == name else c.nullable,
            default if c.name == name else "",
        )
        for c in TABLE.columns
    )


TABLE_CASES = [
    ("missing-column", replace(TABLE, columns=TABLE.columns[1:])),
    ("column-type", replace(TABLE, columns=with_column("occurred_at", sql_type="timestamp"))),
    ("column-type", replace(TABLE, columns=with_column("payload", sql_type="text"))),
    ("default-on-nullable", replace(TABLE, columns=with_column("headers", default="'{}'::jsonb"))),
    ("nullable-column", replace(TABLE, columns=with_column("aggregate_id", nullable=True))),
    ("no-row-trigger", replace(TABLE, has_row_trigger=False)),
    ("partition-root", replace(TABLE, partitioned=True, publishes_via_root=False)),
    ("value-converter", replace(TABLE, columns=with_column("payload", sql_type="bytea"))),
]


@pytest.mark.parametrize(("code", "table"), TABLE_CASES)
def test_a_mistake_of_the_table_is_found(code: str, table: CapturedTable) -> None:
    assert code in {finding.code for finding in check(GOOD, debezium=V370, table=table)}


def test_the_contracts_table_is_clean() -> None:
    assert check(GOOD, debezium=V370, postgres_major=18, table=TABLE) == []


def test_a_default_on_a_column_that_is_not_null_is_fine() -> None:
    table = replace(TABLE, columns=with_column("event_version", default="1"))
    assert check(GOOD, debezium=V370, table=table) == []


def test_the_row_trigger_matters_less_from_371_on() -> None:
    table = replace(TABLE, has_row_trigger=False)
    assert [f.severity for f in check(GOOD, debezium=V370, table=table)] == [Severity.CRITICAL]
    assert [f.severity for f in check(GOOD, debezium=V371, table=table)] == [Severity.WARNING]


# -- releases and bookkeeping ------------------------------------------------------------------------


def test_topics_that_forget_before_the_outbox_may() -> None:
    assert retention(definition("outbox: {keep: 7 days}\n")) == []  # as the broker says
    topics = "  defaults: {config: {retention.ms: %s}}\n  aggregates: {order: {config: {retention.ms: %s}}}\n"
    made = definition(topics % (604_800_001, 604_800_000) + "outbox: {keep: 7 days}\n")
    assert [(found.code, "outbox.event.order keeps" in found.cause) for found in retention(made)] == [
        ("short-retention", True)
    ]
    assert retention(definition(topics % (-1, -1) + "outbox: {keep: 7 days}\n")) == []


def test_old_releases() -> None:
    def codes(debezium: str, major: int) -> list[tuple[str, Severity]]:
        found = releases(debezium=Version.parse(debezium), postgres_major=major)
        return [(finding.code, finding.severity) for finding in found]

    assert codes("3.7.0.Final", 14) == []
    assert codes("3.6.1.Final", 18) == [("old-debezium", Severity.WARNING)]
    assert codes("2.7.4.Final", 18) == [("old-debezium", Severity.CRITICAL)]
    assert codes("3.7.1.Final", 13) == [("old-postgresql", Severity.CRITICAL)]
    assert releases(debezium=None, postgres_major=None) == []


def test_the_worst_comes_first_and_decides_the_exit_code() -> None:
    found = check({})
    assert found[0].severity is Severity.CRITICAL
    assert worst(found).exit_code is ExitCode.CRITICAL
    assert worst([]).exit_code is ExitCode.OK


def test_nothing_is_said_of_a_value_that_is_a_secret() -> None:
    found = check(changed(GOOD, {"database.password": "hunter2"}))
    assert all("hunter2" not in finding.cause + finding.remedy for finding in found)


# -- connectors of another contract ------------------------------------------------------------------

FOREIGN = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "topic.prefix": "crm",
    "slot.name": "crm",
    "publication.name": "crm",
    "publication.autocreate.mode": "filtered",
    "table.include.list": "public.crm_outboxrecord",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.table.field.event.key": "message_key",
    "transforms.outbox.route.by.field": "topic",
    "transforms.outbox.table.fields.additional.placement": "id:header:ce_id,event_type:header:ce_type",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "io.debezium.converters.BinaryDataConverter",
}
THEIRS = CapturedTable(
    tuple(
        TableColumn(name, kind, False)
        for name, kind in (
            ("id", "uuid"),
            ("topic", "character varying(255)"),
            ("message_key", "character varying(255)"),
            ("event_type", "character varying(255)"),
            ("payload", "bytea"),
        )
    )
)
CONVERTERS = (
    "io.debezium.converters.ByteBufferConverter",
    "io.debezium.converters.BinaryDataConverter",
    "io.debezium.converters.ByteArrayConverter",
    "org.apache.kafka.connect.converters.ByteArrayConverter",
    "io.apicurio.registry.utils.converter.AvroConverter",
    "com.example.Unknown",
    "org.apache.kafka.connect.json.JsonConverter",
    None,
)


@pytest.mark.parametrize("table", [None, THEIRS], ids=["unseen", "seen"])
@pytest.mark.parametrize("converter", CONVERTERS)
def test_no_remedy_destroys_a_binary_payload(converter: str | None, table: CapturedTable | None) -> None:
    config = changed(FOREIGN, {"value.converter": converter})
    for found in check(config, debezium=V370, postgres_major=18, table=table):
        assert "set value.converter=org.apache.kafka.connect.storage.StringConverter" not in found.remedy


def test_text_of_a_live_bytea_is_mended_with_all_that_it_takes() -> None:
    text = changed(FOREIGN, {"value.converter": "org.apache.kafka.connect.storage.StringConverter"})
    found = next(f for f in check(text, table=THEIRS) if f.code == "value-converter")
    assert found.severity is Severity.CRITICAL
    assert "set value.converter=io.debezium.converters.BinaryDataConverter" in found.remedy
    assert "delegate.converter.type=org" in found.remedy


@pytest.mark.parametrize("table", [None, THEIRS], ids=["unseen", "seen"])
def test_another_contract_is_not_critical_and_no_column_of_ours_is_advised(
    table: CapturedTable | None,
) -> None:
    for found in check(FOREIGN, debezium=V370, postgres_major=18, table=table):
        assert "aggregate_id" not in found.remedy
        assert "occurred_at" not in found.remedy
        if found.code.startswith("contract-"):
            assert found.severity is Severity.WARNING
            assert "set " not in found.remedy


def test_a_column_that_the_live_table_lacks_is_critical_whatever_the_contract() -> None:
    wrong = {**FOREIGN, "transforms.outbox.table.field.event.key": "aggregate_id"}
    found = [f for f in check(wrong, table=THEIRS) if f.code == "missing-column"]
    assert [(f.severity, "message_key" in f.remedy) for f in found] == [(Severity.CRITICAL, True)]


def test_a_reference_is_not_read_as_a_value() -> None:
    keys = ("database.hostname", "topic.prefix", "slot.name", "table.include.list", "value.converter")
    config = {**FOREIGN, **dict.fromkeys(keys, "${file:/run/s.properties:x}")}
    found = check({**config, "database.password": "${env:P}"}, debezium=V370)
    for key in keys:
        assert not [f for f in found if f.code != "references" and f"{key}=" in f.cause + f.remedy]
    notes = [f for f in found if f.code == "references"]
    assert [(f.severity, f.cause) for f in notes] == [
        (Severity.OK, "5 values are references and were not checked")
    ]


def test_a_negated_predicate_that_lets_the_outbox_through_is_right() -> None:
    change: Change = {"predicates.isOutbox.pattern": "__debezium-heartbeat.*", ROUTER + "negate": "true"}
    assert "predicate-pattern" not in {f.code for f in check(changed(GOOD, change))}


def test_every_code_has_a_case() -> None:
    sources = "".join(path.read_text("utf-8") for path in PACKAGE.glob("checks*.py"))
    codes = set(re.findall(r"Finding\(\s*\"([a-z0-9-]+)\"", sources))
    codes |= {expectation.code for expectation in checks_values.EXPECTATIONS}
    codes |= {"topic-prefix", "slot-name", "publication-name"}
    tested = {code for code, _ in (*CASES, *BINARY_CASES)} | {code for code, _ in TABLE_CASES}
    tested |= {
        "references",
        "filtered-publication",
        "slot-failover",
        "old-debezium",
        "old-postgresql",
        "short-retention",
    }
    assert codes == tested
