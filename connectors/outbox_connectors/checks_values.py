"""Check single properties: those with one right value, and those with limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from outbox_connectors import profile
from outbox_connectors.config_view import View
from outbox_connectors.findings import Finding, Severity
from outbox_connectors.masking import is_literal_secret
from outbox_connectors.nearest_word import nearest
from outbox_connectors.profile import Version

W, C = Severity.WARNING, Severity.CRITICAL
MEASURED: Final = "measured on Debezium 3.7.0.Final"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A property and its acceptable values. `default` is the value Debezium uses when it is absent."""

    code: str
    key: str
    good: tuple[str, ...]
    default: str
    severity: Severity
    cause: str
    source: str = MEASURED


EXPECTATIONS: Final = (
    Expectation(
        "connector-class", "connector.class", ("io.debezium.connector.postgresql.PostgresConnector",), "", C,
        "is not Debezium's PostgreSQL connector",
    ),
    Expectation("tasks-max", "tasks.max", ("1",), "1", W, "has no effect: a slot has one reader"),
    Expectation(
        "plugin-name", "plugin.name", ("pgoutput",), "decoderbufs", C,
        "names an output plug-in that PostgreSQL does not come with",
    ),
    Expectation(
        "slot-drop-on-stop", "slot.drop.on.stop", ("false",), "false", C,
        "drops the slot at every rebalance, update and restart; what is written until it is back is lost",
    ),
    Expectation(
        "publication-autocreate", "publication.autocreate.mode", ("disabled",), "all_tables", C,
        "publishes or changes tables on its own: all_tables breaks UPDATE on tables without a key, filtered"
        " takes tables out that somebody added",
    ),
    Expectation(
        "lsn-flush-mode", "lsn.flush.mode", ("connector",), "connector", C,
        "lets the slot overtake the stored offset, so that the next restart fails, or never moves it",
    ),
    Expectation(
        "flush-lsn-source", "flush.lsn.source", ("true",), "true", C,
        "is the old name of lsn.flush.mode=manual: the slot never moves",
    ),
    Expectation(
        "lsn-flush-timeout", "lsn.flush.timeout.action", ("fail",), "fail", W,
        "hides a slot that does not move",
    ),
    Expectation(
        "transaction-metadata", "provide.transaction.metadata", ("false",), "false", C,
        "stores offsets after which rows of interleaved transactions are lost at a restart",
        "Debezium dbz#76",
    ),
    Expectation(
        "errors-tolerance", "errors.tolerance", ("none",), "none", C,
        "drops rows that cannot be routed, converted or produced, and the state stays RUNNING",
    ),
    Expectation(
        "event-failures", "event.processing.failure.handling.mode", ("fail",), "fail", C,
        "drops events that cannot be processed",
        "Debezium documentation",
    ),
    Expectation(
        "conversion-failures", "event.converting.failure.handling.mode", ("fail",), "warn", C,
        "turns a value that cannot be converted into NULL: a payload becomes a tombstone",
    ),
    Expectation(
        "logged-payloads", "errors.log.include.messages", ("false",), "false", W,
        "writes payloads into the worker's log",
        "Kafka Connect documentation",
    ),
    Expectation(
        "guardrail", "guardrail.collections.limit.action", ("fail",), "warn", W,
        "lets a wrong include list publish more than the outbox",
    ),
    Expectation(
        "extended-headers", "extended.headers.enabled", ("false",), "true", W,
        "puts four headers of Debezium's own in front of the contract's eight",
    ),
    Expectation(
        "tombstones-on-delete", "tombstones.on.delete", ("false",), "true", W,
        "makes a record for every row that is pruned, where deletes are published",
    ),
    Expectation(
        "producer-acks", "producer.override.acks", ("all", "-1"), "all", C,
        "confirms the slot before Kafka has stored the record safely",
        "Kafka documentation",
    ),
    Expectation(
        "producer-idempotence", "producer.override.enable.idempotence", ("true",), "true", C,
        "lets a retried request overtake a later one: order is lost",
        "Kafka documentation",
    ),
    Expectation(
        "key-converter", "key.converter", ("org.apache.kafka.connect.storage.StringConverter",), "", C,
        "writes the key as other bytes: another partition, and order is lost where both forms exist",
    ),
    Expectation(
        "header-converter", "header.converter",
        ("org.apache.kafka.connect.storage.SimpleHeaderConverter",),
        "org.apache.kafka.connect.storage.SimpleHeaderConverter", C,
        "writes headers in another form than the contract's",
    ),
)  # fmt: skip


def _expectations(view: View) -> Iterator[Finding]:
    for wanted in EXPECTATIONS:
        value = view.get(wanted.key) or wanted.default
        if value.lower() in {good.lower() for good in wanted.good}:
            continue
        shown = f"{wanted.key}={value}" if view.get(wanted.key) else f"{wanted.key} (absent: {value or '?'})"
        remedy = f"set {wanted.key}={wanted.good[0]}"
        yield Finding(wanted.code, wanted.severity, f"{shown} {wanted.cause}", remedy, wanted.source)


def _identity(view: View) -> Iterator[Finding]:
    for code, key, default in (
        ("topic-prefix", "topic.prefix", ""),
        ("slot-name", "slot.name", "debezium"),
        ("publication-name", "publication.name", "dbz_publication"),
    ):
        if not view.get(key):
            severity = W if default else C
            cause = f"{key} is absent" + (
                f", so it is {default}, as in every other connector" * bool(default)
            )
            yield Finding(code, severity, cause, f"set {key}", MEASURED)
    slot = view.get("slot.name")
    if slot and not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        cause = f"slot.name={slot} is not a slot name"
        yield Finding("slot-name", C, cause, "use lower-case letters, digits and '_'", "PostgreSQL")


def _failover(view: View) -> Iterator[Finding]:
    if view.true("slot.failover") and view.postgres_major is not None and view.postgres_major < 17:
        cause = f"slot.failover=true has no effect on PostgreSQL {view.postgres_major}"
        yield Finding("slot-failover", W, cause, "remove it, or use PostgreSQL 17 or later", MEASURED)


def _include_list(view: View) -> Iterator[Finding]:
    names = view.names("table.include.list")
    if not names:
        cause = "table.include.list is absent: every table of the publication is captured"
        yield Finding("table-include-list", C, cause, "name the outbox", MEASURED)
    for name in names:
        if "." not in name:
            cause = f"table.include.list has {name} without a schema: no row will come, and no error"
            yield Finding("table-include-list", C, cause, "write schema\\.table", MEASURED)
        elif re.search(r"(?<![\\\])])\.(?![*+?])", name):
            cause = f"table.include.list has {name}: an unescaped dot matches any character"
            yield Finding("table-regex", W, cause, "write schema\\.table", "Debezium documentation")


def _skipped_operations(view: View) -> Iterator[Finding]:
    if "c" in view.names("skipped.operations"):
        cause = "skipped.operations has c: inserts are skipped, and they are the events"
        yield Finding("skipped-inserts", C, cause, "set skipped.operations=u,d,t", "Debezium documentation")


def _snapshot(view: View) -> Iterator[Finding]:
    mode = view.get("snapshot.mode") or "initial"
    causes = {
        "initial": (W, "sends every row of the outbox again when offsets are gone"),
        "always": (W, "sends every row of the outbox again at every start"),
        "when_needed": (C, "hides a lost slot: rows pruned meanwhile are lost without an error"),
        "initial_only": (C, "stops after the snapshot, and the task stays RUNNING"),
    }
    if mode in causes:
        severity, cause = causes[mode]
        remedy = "set snapshot.mode=no_data"
        yield Finding("snapshot-mode", severity, f"snapshot.mode={mode} {cause}", remedy, MEASURED)
    if mode not in ("no_data", "never") and view.number("snapshot.max.threads", 1) > 1:
        cause = "snapshot.max.threads above 1 breaks the order of the rows"
        yield Finding("snapshot-threads", W, cause, "remove it", "Debezium documentation")


def _offset_strategy(view: View) -> Iterator[Finding]:
    strategy = view.get("offset.mismatch.strategy") or "no_validation"
    known = ("no_validation", "trust_offset", "trust_slot", "trust_greater_lsn")
    remedy = "set offset.mismatch.strategy=no_validation"
    if strategy.lower() not in known:
        cause = f"offset.mismatch.strategy={strategy} is unknown and silently taken for no_validation"
        yield Finding("offset-mismatch-strategy", W, cause, nearest(strategy, known), MEASURED)
    elif strategy.lower() == "trust_offset":
        cause = "offset.mismatch.strategy=trust_offset discards unread rows after a restore"
        yield Finding("offset-mismatch-strategy", C, cause, remedy, MEASURED)
    elif strategy.lower() != "no_validation":
        cause = f"offset.mismatch.strategy={strategy} creates a lost slot anew without an error"
        yield Finding("offset-mismatch-strategy", C, cause, remedy, MEASURED)


def _limits(view: View) -> Iterator[Finding]:
    if view.number("slot.retry.delay.ms", 10_000) > 2000:
        cause = "slot.retry.delay.ms above 2000 (default 10000): a restart that meets its old walsender waits"
        yield Finding("slot-retry-delay", W, cause, "set slot.retry.delay.ms=2000", MEASURED)
    if view.number("errors.max.retries", -1) < 0:
        cause = "errors.max.retries is unlimited: what never works stays RUNNING for ever"
        yield Finding("unlimited-retries", W, cause, "set errors.max.retries=30", MEASURED)
    if view.number("poll.interval.ms", 500) > 50:
        cause = "poll.interval.ms above 50 (default 500) is also the delay of an event"
        yield Finding("poll-interval", W, cause, "set poll.interval.ms=10", MEASURED)
    if view.number("max.queue.size.in.bytes", 0) <= 0:
        cause = "max.queue.size.in.bytes is unlimited: large payloads fill the worker's memory"
        remedy = "set max.queue.size.in.bytes=67108864"
        yield Finding("queue-bytes", W, cause, remedy, "Debezium documentation")
    if view.number("max.queue.size", 8192) <= view.number("max.batch.size", 2048):
        cause = "max.queue.size must be above max.batch.size"
        yield Finding("queue-size", C, cause, "raise max.queue.size", MEASURED)
    if view.number("guardrail.collections.max", 0) <= 0:
        cause = "guardrail.collections.max is off: a wrong include list publishes more than the outbox"
        yield Finding("guardrail", W, cause, "set guardrail.collections.max=1", MEASURED)
    if view.number("status.update.interval.ms", 10_000) >= 60_000:
        cause = "status.update.interval.ms is not below PostgreSQL's wal_sender_timeout (60 s by default)"
        yield Finding("status-interval", W, cause, "set it to 10000", "Debezium documentation")


def _record_limits(view: View) -> Iterator[Finding]:
    if view.number("producer.override.max.request.size", 1_048_576) < 1_048_576:
        cause = "producer.override.max.request.size is below what the outbox lets through"
        yield Finding("request-limit", C, cause, "remove it", MEASURED)
    for key in view.config:
        topic_limit = key.startswith("topic.creation.") and key.endswith(".max.message.bytes")
        if topic_limit and view.number(key, 1_048_588) < 1_048_588:
            cause = f"{key} is below what the outbox lets through: one large row stops everything"
            yield Finding("topic-limit", C, cause, "remove it", MEASURED)
    if view.get("producer.override.max.block.ms"):
        cause = "producer.override.max.block.ms makes a broker outage fail the task"
        yield Finding("max-block", W, cause, "remove it", MEASURED)


def _topic_creation(view: View) -> Iterator[Finding]:
    keys = ("topic.creation.default.partitions", "topic.creation.default.replication.factor")
    absent = [key for key in keys if not view.get(key)]
    if len(absent) == 2:
        cause = "topic.creation.default.* is absent: one row of a new aggregate type can stop everything"
        yield Finding("topic-creation", C, cause, f"set {keys[0]} and {keys[1]}", MEASURED)
    elif absent:
        cause = f"{absent[0]} is absent, which fails the connector"
        yield Finding("topic-creation", C, cause, f"set {absent[0]}", MEASURED)


def _secrets(view: View) -> Iterator[Finding]:
    for key, value in view.config.items():
        if is_literal_secret(key, value):
            cause = f"{key} is a literal that anybody can read through Connect's REST API"
            remedy = "let Connect resolve it: ${env:VARIABLE} or ${file:/path:key}"
            yield Finding("literal-secret", C, cause, remedy, MEASURED)


def _tls(view: View) -> Iterator[Finding]:
    host, mode = view.get("database.hostname"), view.get("database.sslmode") or "prefer"
    far = "." in host and not host.startswith("127.")
    if far and mode in ("disable", "allow", "prefer"):
        cause = f"database.sslmode={mode} to {host} sends the password to whoever answers"
        yield Finding("no-tls", W, cause, "set verify-full and database.sslrootcert", "libpq documentation")


def _overridden_streams(view: View) -> Iterator[Finding]:
    for key, cause in (
        ("slot.stream.params", "overrides what Debezium asks of pgoutput, unchecked"),
        ("converters", "changes values before the router sees them"),
        ("column.include.list", "can take a column away that the router needs"),
        ("column.exclude.list", "can take a column away that the router needs"),
    ):
        if view.get(key):
            yield Finding("unchecked-option", W, f"{key} {cause}", "remove it", "Debezium documentation")


def _misspelt(view: View) -> Iterator[Finding]:
    for key, known in (("read.only", ("true", "false")),):
        if view.get(key) and view.get(key).lower() not in known:
            cause = f"{key}={view.get(key)} is neither true nor false, and no validation says so"
            yield Finding("misspelt-value", W, cause, f"set {key}=false", MEASURED)
    ours = {prop.key for prop in profile.properties()}
    for key in view.config:
        if key in ours or key.startswith(("transforms.", "predicates.", "topic.creation.")):
            continue
        twin = next((own for own in ours if _letters(own) == _letters(key)), None)
        if twin is not None:
            cause = f"{key} is not an option, so it is ignored"
            yield Finding("misspelt-option", W, cause, f"did you mean {twin}?", MEASURED)


def _letters(key: str) -> str:
    """Reduce a key to its letters, without separators, capitals and plural s, to find misspelt ones."""
    return re.sub(r"[^a-z]", "", key.lower()).replace("s", "")


def _old_bug(view: View) -> Iterator[Finding]:
    filtered = view.get("publication.autocreate.mode") == "filtered"
    if filtered and view.get("skipped.operations") and view.older_than(Version(3, 7)):
        cause = "skipped.operations with publication.autocreate.mode=filtered makes 3.6 send broken SQL"
        remedy = "set publication.autocreate.mode=disabled"
        yield Finding("filtered-publication", C, cause, remedy, "measured on Debezium 3.6.3.Final")


RULES: Final[tuple[Callable[[View], Iterator[Finding]], ...]] = (
    _expectations,
    _identity,
    _failover,
    _include_list,
    _skipped_operations,
    _snapshot,
    _offset_strategy,
    _limits,
    _record_limits,
    _topic_creation,
    _secrets,
    _tls,
    _overridden_streams,
    _misspelt,
    _old_bug,
)
