"""Before a relay starts: is the outbox set up for it, and is it the only road?"""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AclOperation
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline.connect import wire_guard
from outbox_pipeline.errors import AccessDenied, Failed, Refused
from outbox_pipeline.ids import publisher
from outbox_pipeline.provision import tables
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import RelayNames, relay_names
from outbox_pipeline.relay.restored import admit, last_published
from outbox_pipeline.relay.session import read_settings
from outbox_pipeline.relay.settings import Mode, RelaySettings
from outbox_pipeline.servers import admin_rights, topics
from outbox_pipeline.servers.kafka import administrator
from outbox_pipeline.servers.plan import State

_SET_UP = "run outboxctl relay --init"


def check(conn: psycopg.Connection[TupleRow], definition: Definition, settings: RelaySettings) -> int:
    """Refuse what would lose or repeat events; return the number of shards.

    Raises Failed where something is missing, Refused where a connector reads the same outbox, or has
    and its rows are still there, or another pipeline relays it, and Unreachable.
    """
    wire_guard.refuse_other_form(definition, None)
    names = relay_names(definition)
    found = read_settings(conn, names)
    if found is None:
        raise Failed(f"outbox {definition.outbox.table} is not set up for a relay", remedy=_SET_UP)
    pipeline, shards = found
    _check_table(conn, definition)
    wishes = schema.SetUpOptions(shards, notify=False, archive=settings.mode is Mode.ARCHIVE)
    planned = schema.plan_objects(schema.read(conn, names), found, names, definition.outbox, wishes)
    if planned.why:
        error = Refused if pipeline != definition.pipeline else Failed
        raise error(planned.why, where=planned.name, remedy=planned.remedy)
    if planned.changes:
        what = ", ".join(change.field for change in planned.changes)
        archive = " --archive" if settings.mode is Mode.ARCHIVE else ""
        raise Failed(f"{what} is missing", where=planned.name, remedy=_SET_UP + archive)
    publisher.check_only_road(conn, definition)
    published: dict[int, int] = {}
    if settings.transactions:
        _check_progress_topic(definition, names, shards)
        published = last_published(definition, names, shards)
    admit(conn, definition, names, published)
    return shards


def _check_table(conn: psycopg.Connection[TupleRow], definition: Definition) -> None:
    outbox = definition.outbox
    ours = admin_rights.read(conn, outbox.table.schema)
    planned = tables.plan(tables.read(conn, outbox.table), outbox, ours, datetime.now(UTC).date())
    missing = [c for c in planned.changes if c.field.startswith("column") and c.have == "missing"]
    if planned.state is State.BLOCKED and missing:
        raise Failed(planned.why, where=f"table {planned.name}", remedy=planned.remedy)


def _check_progress_topic(definition: Definition, names: RelayNames, shards: int) -> None:
    found = topics.inspect(definition.kafka, [names.progress_topic])[names.progress_topic]
    if found is None or found.partitions < shards:
        have = "is missing" if found is None else f"has {found.partitions} partitions for {shards} shards"
        raise Failed(have, where=f"topic {names.progress_topic}", remedy=_SET_UP)
    _check_rights(definition, names.progress_topic)


def _check_rights(definition: Definition, topic: str) -> None:
    # When Kafka refuses a transaction it does not say for which topic: rows would be blamed.
    admin = administrator(definition.kafka)
    asked = admin.client.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
    allowed = admin.wait(asked[topic], topics.TIMEOUT_SECONDS).authorized_operations
    missing = [one.name for one in (AclOperation.READ, AclOperation.WRITE) if one not in (allowed or (one,))]
    if missing:
        raise AccessDenied(
            f"Kafka refuses {' and '.join(missing)}",
            where=f"topic {topic}",
            remedy="grant it, or run with --transactions off",
        )
