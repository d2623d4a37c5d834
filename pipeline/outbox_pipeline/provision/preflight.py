"""What a command needs, asked before its first change: rights, topics, room on the disk.

A command that finds out half way that it cannot go on leaves a pipeline that is neither as it was nor as
it should be. So it names here what it will use, and a dry run asks the same. Nothing here changes anything.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psycopg
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, ConfigResource, ResourceType
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import AccessDenied, OutboxError, Refused, Unreachable
from outbox_pipeline.servers import admin_rights, topic_reader
from outbox_pipeline.servers.kafka import Administrator, administrator
from outbox_pipeline.servers.offset_reader import OffsetReader

Connection = psycopg.Connection[TupleRow]

ANSWER_SECONDS: Final = 15.0
ID_BYTES: Final = 16
SMALLEST_ROW_BYTES: Final = 100  # of an outbox: header of the tuple, id, key, type, times
LOCK: Final = "UPDATE, DELETE, TRUNCATE"  # any one of them lets a role lock a table against writers


def require(checks: Iterable[Callable[[], None]]) -> None:
    """Make every check. Raises the first error, and tells in it of the others."""
    found: list[OutboxError] = []
    for check in checks:
        try:
            check()
        except OutboxError as error:
            found.append(error)
    if found:
        first, others = (
            found[0],
            "; ".join(f"{e.where}: {e.problem}" if e.where else e.problem for e in found[1:]),
        )
        problem = first.problem + (f" (also {others})" if others else "")
        raise type(first)(problem, where=first.where, remedy=first.remedy) from first


# -- PostgreSQL ----------------------------------------------------------------------------------------


def slot_rights(conn: Connection, definition: Definition) -> None:
    """Require that this role may make, move and drop slots. Raises Refused."""
    ours = admin_rights.read(conn, definition.outbox.table.schema)
    if not ours.may_replicate:
        role = sql.Identifier(ours.role).as_string(conn)
        raise Refused(
            f"{ours.role} may not create, move or drop replication slots",
            where=f"slot {definition.postgres.slot}",
            remedy=f"GRANT rds_replication TO {role}" if ours.on_rds else f"ALTER ROLE {role} REPLICATION",
        )


def table_rights(conn: Connection, schema: str, wanted: Mapping[str, Sequence[str]]) -> None:
    """Require rights on tables of a schema; each text names a right, or several of which one is enough.

    A table that is not there yet needs CREATE on the schema. Raises Refused.
    """
    pairs = [(name, right) for name, several in wanted.items() for right in several]
    values = {
        "names": [sql.Identifier(schema, name).as_string(conn) for name, _ in pairs],
        "privileges": [right for _, right in pairs],
        "schema": schema,
    }
    lacking = conn.execute(statements.get("preflight_read_lacking"), values).fetchall()
    if lacking:
        missing = ", ".join(f"{' or '.join(right.split(', '))} on {name}" for name, right in lacking)
        raise Refused(
            f"{conn.info.user} lacks {missing}",
            where="PostgreSQL",
            remedy="grant it, or use another postgres.admin",
        )


def aggregate_types(
    conn: Connection,
    table: sql.Identifier,
    *,
    ids: Sequence[UUID] | None = None,
    since: datetime | None = None,
    aggregate_type: str | None = None,
    aggregate_id: str | None = None,
) -> set[str]:
    """Name the aggregate types of some rows, whose topics will be written. Reads the table once."""
    query = sql.SQL(statements.get("preflight_read_types")).format(table=table)
    values: dict[str, Any] = {
        "ids": ids,
        "since": since,
        "aggregate_type": aggregate_type,
        "aggregate_id": aggregate_id,
    }
    return {row[0] for row in conn.execute(query, values)}


# -- Kafka ---------------------------------------------------------------------------------------------


def event_topics(definition: Definition, types: Iterable[str] = ()) -> None:
    """Require that every event topic can be read, and those of some aggregate types be written.

    A topic that is missing has to be one that the broker makes by itself. Raises Refused and Unreachable.
    """
    admin, defaults = administrator(definition.kafka), definition.kafka.defaults
    written = {definition.kafka.topic_of(one) for one in types}
    allowed = _allowed(admin, sorted(_existing(admin, definition) | written))
    missing = sorted(name for name in written if allowed[name] is None)
    if missing and not _made_by_broker(admin):
        raise Refused(
            f"topic {missing[0]} does not exist, and the broker makes none by itself",
            where=admin.servers,
            remedy=f"kafka-topics.sh --create --topic {missing[0]} --partitions {defaults.partitions} "
            f"--replication-factor {defaults.replication_factor}",
        )
    for name, operations in allowed.items():
        wanted = [AclOperation.READ, *([AclOperation.WRITE] if name in written else [])]
        lacking = [one.name for one in wanted if operations and one not in operations]
        if lacking:
            raise AccessDenied(
                f"Kafka refuses {' and '.join(lacking)} on topic {name}",
                where=admin.servers,
                remedy="grant it to the user of kafka.client",
            )


def _existing(admin: Administrator, definition: Definition) -> set[str]:
    future = admin.client.describe_cluster(request_timeout=ANSWER_SECONDS)
    admin.wait(future, ANSWER_SECONDS)  # says why where there is no answer
    pattern = topic_reader.topic_pattern(definition.kafka.topic)
    return {
        name for name in admin.client.list_topics(timeout=ANSWER_SECONDS).topics if pattern.fullmatch(name)
    }


def _allowed(admin: Administrator, names: Sequence[str]) -> dict[str, Sequence[AclOperation] | None]:
    """Tell which operations are allowed on topics; None for one that does not exist, empty: not known."""
    if not names:
        return {}
    asked = admin.client.describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=ANSWER_SECONDS
    )
    found: dict[str, Sequence[AclOperation] | None] = {}
    for name, future in asked.items():
        try:
            found[name] = admin.wait(future, ANSWER_SECONDS).authorized_operations or ()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            found[name] = None
    return found


def _made_by_broker(admin: Administrator) -> bool:
    """Tell whether a topic is made when it is first written; also where that may not be asked."""
    try:
        node = admin.wait(admin.client.describe_cluster(), ANSWER_SECONDS).nodes[0]
        resource = ConfigResource(ResourceType.BROKER, str(node.id))
        asked = admin.client.describe_configs([resource], request_timeout=ANSWER_SECONDS)[resource]
        entry = admin.wait(asked, ANSWER_SECONDS).get("auto.create.topics.enable")
    except (KafkaException, Unreachable):
        return True
    return entry is None or str(entry.value).lower() == "true"


# -- the disk --------------------------------------------------------------------------------------------


def room_for_ids(
    conn: Connection, definition: Definition, *, folder: str = "", free_bytes: int | None = None
) -> None:
    """Require room for the temporary files of all ids, of rows and of records. Raises Refused."""
    place = Path(folder or tempfile.gettempdir())
    admin = administrator(definition.kafka)
    table = definition.outbox.table
    name = {"name": sql.Identifier(table.schema, table.name).as_string(conn)}
    row = conn.execute(statements.get("preflight_read_size"), name).fetchone()
    rows = (row[0] if row else 0) // SMALLEST_ROW_BYTES
    needed = ID_BYTES * (rows + _records(admin, definition))
    free = shutil.disk_usage(place).free if free_bytes is None else free_bytes
    if needed > free:
        raise Refused(
            f"the ids of rows and records may take {needed:,} bytes, and {free:,} are free",
            where=str(place),
            remedy="make room, or set TMPDIR to a folder with more",
        )


def _records(admin: Administrator, definition: Definition) -> int:
    """Count the offsets that the event topics hold; markers of transactions count too."""
    names = sorted(_existing(admin, definition))
    described = admin.client.describe_topics(TopicCollection(names)) if names else {}
    parts = [
        (name, part.id)
        for name, future in described.items()
        for part in admin.wait(future, ANSWER_SECONDS).partitions
    ]
    reader = OffsetReader(definition.kafka, f"outboxctl-preflight-{definition.pipeline}")
    ends, starts = reader.offsets(parts, OFFSET_END), reader.offsets(parts, OFFSET_BEGINNING)
    return sum(end - starts.get(part, end) for part, end in ends.items())
