"""The publisher of an outbox, connector or relay, stored beside it: both must never publish it.

A slot shows that the connector publishes. Once the slot is dropped, nothing in PostgreSQL shows that
rows which are still in the outbox have been published. So the last publisher is stored in the table
OUTBOX_road, and a relay starts only where it was the relay, or where it is proven that no row of the
outbox is in a topic.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Refused
from outbox_pipeline.ids.comparison import SpooledTopics, compare, spooled_rows
from outbox_pipeline.servers import slots, trust

Connection = psycopg.Connection[TupleRow]
TO_RELAY = "run outboxctl switch --to relay: it takes what is published out of the outbox, by id"


class Publisher(StrEnum):
    """Who publishes the rows of an outbox."""

    CDC = "cdc"
    RELAY = "relay"


def written(conn: Connection, definition: Definition) -> Publisher | None:
    """Read the stored publisher; None where none was ever stored. Two queries, no lock."""
    name = {"name": _table(definition).as_string(conn)}
    there = conn.execute(statements.get("road_find"), name).fetchone()
    row = _run(conn, definition, "road_read") if there and there[0] else None
    return Publisher(str(row[0])) if row else None


def standing(conn: Connection, definition: Definition) -> Publisher | None:
    """Read the publisher now: the connector while there is a slot, lost or not, else the stored one."""
    if slots.read(conn, definition.postgres.slot) is not None:
        return Publisher.CDC
    return written(conn, definition)


def write(conn: Connection, definition: Definition, new: Publisher, why: str) -> None:
    """Store the publisher of the outbox. Does not store the relay while there is a slot."""
    # Two that create a table at once: IF NOT EXISTS lets the second fail on the catalog's own index.
    with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable), conn.transaction():
        _run(conn, definition, "road_create")
    # Another role may have created it since this session began.
    trust.refuse(trust.of_outbox(conn, definition.outbox.table))
    _run(conn, definition, "road_write", road=new, why=why, slot=definition.postgres.slot)


def note_connector(conn: Connection, definition: Definition, why: str) -> None:
    """Store that the connector has published, where the relay is stored."""
    if written(conn, definition) is Publisher.RELAY:
        write(conn, definition, Publisher.CDC, why)


def forget(conn: Connection, definition: Definition) -> None:
    """Drop the stored publisher of an outbox that is gone."""
    _run(conn, definition, "road_drop")


def admit_relay(conn: Connection, definition: Definition, *, restored: bool = False) -> None:
    """Let a relay begin, or raise Refused because it could publish rows a second time.

    `restored`: Kafka knows later batches than this database, as after the restore of an older copy;
    then the stored publisher proves nothing. Where proof is needed, all ids of the outbox and of the
    topics are compared, once. Raises Unreachable.
    """
    refuse_beside_connector(conn, definition)
    found = written(conn, definition)
    if found is Publisher.RELAY and not restored:
        return
    empty = _run(conn, definition, "road_is_empty")
    if not (empty and empty[0]):
        _prove_unpublished(conn, definition, found, restored)
    write(
        conn, definition, Publisher.RELAY, "outbox is empty" if empty and empty[0] else "no row is in a topic"
    )


def _prove_unpublished(
    conn: Connection, definition: Definition, found: Publisher | None, restored: bool
) -> None:
    table = f"table {definition.outbox.table}"
    if found is Publisher.CDC:
        raise Refused(
            f"the connector published this outbox last, and slot {definition.postgres.slot} is gone: "
            "which of the rows are in the topics is not known",
            where=table,
            remedy=TO_RELAY,
        )
    count = published(conn, definition)
    # Another relay may have proved it, stored it and published since this one began.
    began = not restored and written(conn, definition) is Publisher.RELAY
    if count and not began:
        why = "; the database is an older copy than Kafka has seen" if restored else ""
        raise Refused(f"{count:,} rows are in the topics already{why}", where=table, remedy=TO_RELAY)


def refuse_beside_connector(conn: Connection, definition: Definition) -> None:
    """Refuse a relay beside a connector: a slot means that it has published these rows, or will.

    A lost slot too: what the connector published before is still in the outbox. Raises Refused.
    """
    slot = slots.read(conn, definition.postgres.slot)
    if slot is None:
        return
    note_connector(conn, definition, f"slot {definition.postgres.slot} was seen")
    state = "is live" if slot.active else "has a slot, so it has published rows that are still here, or will"
    raise Refused(
        f"the connector of pipeline {definition.pipeline} {state}",
        where=f"slot {definition.postgres.slot}",
        remedy="run outboxctl switch --to relay",
    )


def check_still_relay(conn: Connection, definition: Definition) -> None:
    """Refuse a worker when the connector has become the publisher since its relay was admitted."""
    refuse_beside_connector(conn, definition)
    if written(conn, definition) is Publisher.CDC:
        raise Refused(
            f"pipeline {definition.pipeline} is being handed to the connector",
            where=f"table {definition.outbox.table}",
            remedy="finish it: run outboxctl switch again, with --to cdc or --to relay",
        )


def refuse_second(conn: Connection, definition: Definition) -> None:
    """Refuse a connector on an outbox that a relay publishes. Raises Refused.

    A slot that exists already shows that the connector publishes.
    """
    if slots.read(conn, definition.postgres.slot) is not None:
        note_connector(conn, definition, f"slot {definition.postgres.slot} was seen")
    if written(conn, definition) is not Publisher.RELAY:
        return
    empty = _run(conn, definition, "road_is_empty")
    raise Refused(
        "a relay publishes this outbox" + ("" if empty and empty[0] else ", and has not finished"),
        where=f"table {definition.outbox.table}",
        remedy="run outboxctl switch --to cdc",
    )


def published(conn: Connection, definition: Definition) -> int:
    """Count the rows of the outbox whose ids are in a topic. Reads both, in little memory."""
    outbox = definition.outbox.table
    table = sql.Identifier(outbox.schema, outbox.name)
    with spooled_rows(conn, [table]) as rows, SpooledTopics(definition) as records:
        records.read_on()
        return sum(len(part.published) for part in compare(rows, records.ids))


def _table(definition: Definition) -> sql.Identifier:
    outbox = definition.outbox.table
    return sql.Identifier(outbox.schema, f"{outbox.name}_road")


def _run(
    conn: Connection, definition: Definition, name: LiteralString, **values: object
) -> tuple[object, ...] | None:
    outbox = definition.outbox.table
    places = {"road": _table(definition), "table": sql.Identifier(outbox.schema, outbox.name)}
    cursor = conn.execute(sql.SQL(statements.get(name)).format(**places), values or None)
    return cursor.fetchone() if cursor.description else None
