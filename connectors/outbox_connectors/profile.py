"""Render a connector's configuration for a definition, a Debezium version and a PostgreSQL version.

The properties and their reasons are listed in `event_router.yaml`; this module selects them and fills in
values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Final, Self

import yaml

from outbox_connectors import record
from outbox_connectors.definition import Definition, TopicSpec
from outbox_connectors.findings import Finding, Severity
from outbox_connectors.masking import shown

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[.-]([A-Za-z]+)(\d*))?.*")
_QUALIFIERS = ("snapshot", "alpha", "beta", "cr", "final")

MESSAGE_TOPIC_RETENTION_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A Debezium version. `3.7.0.Beta1` comes before `3.7.0.Final`, an absent qualifier is Final."""

    major: int
    minor: int
    micro: int = 0
    qualifier: tuple[int, int] = (_QUALIFIERS.index("final"), 0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `3.7.0.Final`, `3.7`, `3.8.0-SNAPSHOT`. Raises ValueError."""
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"not a Debezium version: {text!r}")
        major, minor, micro, word, number = match.groups()
        final = _QUALIFIERS.index("final")
        rank = _QUALIFIERS.index(word.lower()) if word and word.lower() in _QUALIFIERS else final
        return cls(int(major), int(minor), int(micro or 0), (rank, int(number or 0)))

    def __str__(self) -> str:
        rank, number = self.qualifier
        words = ("SNAPSHOT", "Alpha", "Beta", "CR", "Final")
        return f"{self.major}.{self.minor}.{self.micro}.{words[rank]}{number or ''}"


OLDEST: Final = Version(3, 6)
# The first version that recognises a false match for offsets of type COMMIT (dbz#76).
FIXES_COMMIT_OFFSETS: Final = Version(3, 7)
# The first version that resumes a page of COPY at the right row (dbz#1554).
FIXES_COPY_PAGES: Final = Version(3, 7, 1)


@dataclass(frozen=True, slots=True)
class Property:
    """One property of the profile: an entry of `event_router.yaml`, which explains the fields."""

    key: str
    value: str
    why: str
    set_by: str = ""
    form: str = ""
    payload: str = ""
    since: str = ""
    until: str = ""
    protects: bool = False

    def applies(self, form: str, payload: str, debezium: Version) -> bool:
        """Tell whether the property applies to this heartbeat form, payload type and version."""
        if self.form not in ("", form) or self.payload not in ("", payload):
            return False
        if self.since and debezium < Version.parse(self.since):
            return False
        return not self.until or debezium < Version.parse(self.until)


@dataclass(frozen=True, slots=True)
class Reason:
    """A property of a rendered configuration with the reason for its value. Secrets are masked."""

    key: str
    value: str
    why: str
    protects: bool
    overridden: bool = False
    set_by: str = field(default="")


@cache
def properties() -> tuple[Property, ...]:
    """Read the whole profile: the properties of all forms and versions."""
    text = resources.files(__package__).joinpath("event_router.yaml").read_text("utf-8")
    return tuple(Property(**entry) for entry in yaml.safe_load(text))


def render(definition: Definition, *, debezium: Version, postgres_major: int) -> dict[str, str]:
    """Render the complete connector configuration; `connect.config` overrides every other property."""
    chosen = {p.key: value for p, value in _chosen(definition, debezium, postgres_major)}
    return chosen | _topic_creation(definition) | dict(definition.connect.config)


def _chosen(definition: Definition, debezium: Version, postgres_major: int) -> Iterator[tuple[Property, str]]:
    values = _values(definition, postgres_major)
    form = "heartbeat" if definition.watch.ticker is None else "ticker"
    for prop in properties():
        if prop.applies(form, definition.outbox.payload, debezium):
            value = _filled(prop.value, values)
            if value:  # an empty one is an optional setting that the definition does not have
                yield prop, value


def _filled(value: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], value)


def _values(definition: Definition, postgres_major: int) -> dict[str, str]:
    login, table = definition.postgres.connector, definition.outbox.table
    ssl = {key: login.ssl.get(key, "") for key in ("sslrootcert", "sslcert", "sslkey", "sslpassword")}
    return ssl | {
        "host": login.host,
        "port": str(login.port),
        "database": login.database,
        "user": login.user,
        "password": login.password,
        "sslmode": login.sslmode,
        "topic_prefix": definition.topic_prefix,
        "slot": definition.postgres.slot,
        "failover": _flag(definition.postgres.failover and postgres_major >= 17),
        "publication": definition.postgres.publication,
        "table_pattern": pattern(str(table)),
        "topic_pattern": pattern(f"{definition.topic_prefix}.{table}"),
        "tick_prefix": definition.heartbeat_prefix,
        "tick_pattern": pattern(definition.heartbeat_prefix),
        "canary_pattern": pattern(definition.canary_prefix),
        "partitions": str(definition.kafka.defaults.partitions),
        "replication_factor": str(definition.kafka.defaults.replication_factor),
        "topic_replacement": definition.kafka.topic_of("${routedByValue}"),
        "placement": PLACEMENT,
    }


# The router itself adds `id` as the first header.
PLACEMENT: Final = ",".join(f"{name}:header:{name}" for name in record.HEADERS if name != "id")


def _flag(value: bool) -> str:
    return "true" if value else "false"


def pattern(name: str) -> str:
    """Return a Java regular expression that matches exactly this name.

    Python's `re.escape` is not suitable: it also escapes blanks and hyphens, and Debezium's lists are
    compared and shown as text.
    """
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", name)


def _topic_creation(definition: Definition) -> dict[str, str]:
    """Render topic.creation.*: defaults, a group for messages, a group for each aggregate that differs."""
    defaults = definition.kafka.defaults
    config = {f"topic.creation.default.{key}": value for key, value in defaults.config.items()}
    messages = [pattern(definition.message_topic)]
    if definition.watch.ticker is None:
        messages.append(pattern(f"__debezium-heartbeat.{definition.topic_prefix}"))
    retention = {"retention.ms": str(MESSAGE_TOPIC_RETENTION_MS)}
    spec = TopicSpec("", 1, defaults.replication_factor, retention)
    groups = {"messages": _group("messages", ",".join(messages), spec)}
    for name, own in definition.kafka.aggregates.items():
        if own != TopicSpec(own.name, defaults.partitions, defaults.replication_factor, defaults.config):
            alias = "aggregate_" + name.replace(".", "_")
            groups[alias] = _group(alias, pattern(own.name), own)
    config["topic.creation.groups"] = ",".join(groups)
    for group in groups.values():
        config |= group
    return config


def _group(alias: str, include: str, spec: TopicSpec) -> dict[str, str]:
    settings = {
        "include": include,
        "partitions": str(spec.partitions),
        "replication.factor": str(spec.replication_factor),
        **spec.config,
    }
    return {f"topic.creation.{alias}.{key}": value for key, value in settings.items()}


# -- explaining --------------------------------------------------------------------------------------


def reasons(definition: Definition, *, debezium: Version, postgres_major: int) -> tuple[Reason, ...]:
    """Explain every property of `render`, in its order."""
    chosen = {p.key: p for p, _ in _chosen(definition, debezium, postgres_major)}
    creation = _topic_creation(definition)
    own = definition.connect.config
    found = []
    for key, value in render(definition, debezium=debezium, postgres_major=postgres_major).items():
        prop = chosen.get(key)
        overridden = key in own
        if prop is not None and not overridden:
            why = prop.why
        elif overridden:
            why = "Set by connect.config."
        else:
            why = "Topics that Connect creates on the way: kafka.defaults and kafka.aggregates."
        protects = prop.protects if prop else key in creation
        set_by = prop.set_by if prop else ""
        found.append(Reason(key, shown(key, value), why, protects, overridden, set_by))
    return tuple(found)


def protected_overrides(
    definition: Definition, *, debezium: Version, postgres_major: int
) -> tuple[Finding, ...]:
    """Find the overrides in `connect.config` that remove a protection or contradict the definition."""
    found = []
    own = definition.connect.config
    for prop, value in _chosen(definition, debezium, postgres_major):
        if prop.key not in own or own[prop.key] == value:
            continue
        if prop.set_by:
            cause = f"connect.config sets {prop.key}, which follows {prop.set_by}"
            remedy = f"set {prop.set_by} instead: everything else follows it too"
        elif prop.protects:
            cause = f"connect.config sets {prop.key}={shown(prop.key, own[prop.key])}. {prop.why}"
            remedy = f"remove it, the profile says {value}"
        else:
            continue
        found.append(Finding("protected-override", Severity.WARNING, cause, remedy, "event_router.yaml"))
    return tuple(found)


def known_losses(definition: Definition, *, debezium: Version) -> tuple[Finding, ...]:
    """Report what this version can lose with this definition. Empty with the default ticker."""
    if definition.watch.ticker is not None:
        return ()
    remedy = "set watch.ticker (10s) and run `outboxctl watch`: no loss is known then"
    if debezium < FIXES_COMMIT_OFFSETS:
        cause = (
            f"Debezium {debezium} with its own heartbeat: a crash less than a heartbeat after a commit can"
            " lose rows of a transaction that was open then"
        )
        return (Finding("heartbeat-loss", Severity.WARNING, cause, remedy, "Debezium dbz#76"),)
    cause = (
        f"Debezium {debezium} with its own heartbeat: a heartbeat between BEGIN and first row of a"
        " transaction, then a crash, can lose rows of another one"
    )
    return (Finding("heartbeat-loss", Severity.WARNING, cause, remedy, "Debezium dbz#76"),)
