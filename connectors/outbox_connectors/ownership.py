"""Tell whether `apply` created a connector, and whether logical messages may be written while it runs.

Kafka Connect does not record who registered a connector, so its configuration is compared with what the
definition renders, in the properties that determine what it reads and which messages it captures. These are
the same for every version. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from outbox_connectors import profile
from outbox_connectors.config_view import ROUTER, View, matches
from outbox_connectors.definition import Definition
from outbox_connectors.masking import holds_reference, shown

DEBEZIUM_POSTGRES: Final = "io.debezium.connector.postgresql.PostgresConnector"
INCLUDED: Final = "message.prefix.include.list"
EXCLUDED: Final = "message.prefix.exclude.list"
# The properties that determine what it reads, the key of its offsets, and which messages it captures.
IDENTIFYING: Final = (
    "connector.class",
    "database.dbname",
    "topic.prefix",
    "slot.name",
    "publication.name",
    "table.include.list",
    INCLUDED,
)
# Converters that fail the task at the first logical message, whose value is a Struct (measured on
# 3.7.0.Final).
_BYTES_ONLY: Final = (
    "org.apache.kafka.connect.converters.ByteArrayConverter",
    "io.debezium.converters.ByteBufferConverter",
)
_DELEGATING: Final = (
    "io.debezium.converters.BinaryDataConverter",
    "io.debezium.converters.ByteArrayConverter",
)


def foreign_properties(definition: Definition, live: Mapping[str, str]) -> tuple[str, ...]:
    """Name the identifying properties that differ from what `apply` writes; empty if `apply` created it."""
    wanted = _rendered(definition)
    return tuple(key for key in IDENTIFYING if live.get(key, "") != wanted.get(key, ""))


def why_foreign(definition: Definition, live: Mapping[str, str]) -> str:
    """Say in one line why a connector was not created by `apply`; empty if it was."""
    found = foreign_properties(definition, live)
    if not found:
        return ""
    key, wanted = found[0], _rendered(definition).get(found[0], "")
    value = shown(key, live[key]) if live.get(key) else "absent"
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"connector {definition.connect.connector} was not made by outboxctl apply: its {key} is {value}, "
        f"the definition's is {wanted or 'absent'}{more}"
    )


def why_no_message(
    definition: Definition, live: Mapping[str, str] | None, prefix: str, topic_exists: bool | None
) -> str:
    """Say why a logical message with `prefix` must not be written; empty if it may.

    A captured message becomes a record of the topic `<topic.prefix>.message`. If that does not exist,
    Connect's producer waits for it forever and delivers no further event, and the state stays RUNNING
    (measured on Debezium 3.7.0.Final). `topic_exists` None: not known.
    """
    if live is None:
        return f"there is no connector {definition.connect.connector}"
    return next(_obstacles(definition, View(live, None, None, None), prefix, topic_exists), "")


def captures(live: Mapping[str, str], prefix: str) -> bool:
    """Tell whether a connector may capture messages with a prefix; False only if it certainly does not."""
    included = live.get(INCLUDED, "").strip()
    if not included or holds_reference(included):
        return True
    patterns = [entry.strip() for entry in included.split(",") if entry.strip()]
    return any(matches(f"(?i){entry}", prefix) is not False for entry in patterns)


def _obstacles(definition: Definition, view: View, prefix: str, topic_exists: bool | None) -> Iterator[str]:
    name, wanted = definition.connect.connector, _rendered(definition)
    for key in ("connector.class", "database.dbname", "slot.name", "topic.prefix"):
        value = view.config.get(key, "")
        if value != wanted[key]:
            yield f"{key} of connector {name} is {value or 'absent'}, the definition's is {wanted[key]}"
    yield from _prefixes(definition, view, prefix)
    if any(not view.get(f"transforms.{alias}.predicate") for alias in view.routers):
        yield f"{ROUTER.rpartition('.')[2]} of connector {name} has no predicate: a message can fail its task"
    converter = view.get("value.converter")
    undelegated = not view.get("value.converter.delegate.converter.type")
    if converter in _BYTES_ONLY or (converter in _DELEGATING and undelegated):
        yield f"value.converter of connector {name} cannot write a message, which fails its task"
    if topic_exists is None:
        yield f"whether topic {definition.message_topic} exists cannot be seen"
    elif not topic_exists:
        yield f"topic {definition.message_topic} does not exist: connector {name} would wait for it for ever"


def _prefixes(definition: Definition, view: View, prefix: str) -> Iterator[str]:
    """Yield an obstacle if messages other than our heartbeat and canary may be captured."""
    name, included = definition.connect.connector, view.config.get(INCLUDED, "").strip()
    if view.config.get(EXCLUDED, "").strip():
        yield f"connector {name} captures the messages of everybody but {view.config[EXCLUDED].strip()}"
    if holds_reference(included):
        yield f"which messages connector {name} captures cannot be seen: {INCLUDED} is a reference"
    entries = {entry.strip() for entry in included.split(",") if entry.strip()}
    if not entries:
        yield f"connector {name} captures the messages of everybody: {INCLUDED} is absent"
    ours = {profile.pattern(own) for own in (definition.heartbeat_prefix, definition.canary_prefix)}
    if entries - ours and included != definition.connect.config.get(INCLUDED):
        yield f"{INCLUDED} of connector {name} is {included}, not the definition's prefixes alone"
    if profile.pattern(prefix) not in entries:
        yield f"connector {name} does not capture messages with the prefix {prefix}"


def _rendered(definition: Definition) -> dict[str, str]:
    """Render the connector for any version: the identifying properties are the same for all."""
    return profile.render(definition, debezium=profile.OLDEST, postgres_major=18)
