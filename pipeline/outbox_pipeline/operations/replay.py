"""Publish retained events again with their ids; consumers with an inbox skip those they have applied.

What is retained: the history of a relay, and the outbox while a connector publishes it. What is in the
outbox of a relay has not been published yet and is left to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from confluent_kafka import KafkaException, Producer
from psycopg import sql
from psycopg.rows import TupleRow, args_row

from outbox_connectors.definition import Definition
from outbox_connectors.record import Row, row_record
from outbox_pipeline import sql as statements
from outbox_pipeline.connect import wire_guard
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import Failed, UsageError
from outbox_pipeline.ids import publisher
from outbox_pipeline.ids.publisher import Publisher
from outbox_pipeline.provision import preflight
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import RelayNames, identifiers, relay_names
from outbox_pipeline.relay.settings import producer_config

Connection = psycopg.Connection[TupleRow]
CHUNK = 500
FLUSH_SECONDS = 60.0
CONNECT_SECONDS = 15.0  # that Connect has to tell the connector's configuration


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events to publish again: every condition given has to hold."""

    ids: Sequence[UUID] | None = None
    since: datetime | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None

    def __str__(self) -> str:
        parts = [
            f"{len(self.ids)} ids ({', '.join(map(str, self.ids[:3]))}…)" if self.ids else "",
            f"since {self.since.isoformat()}" if self.since else "",
            f"aggregate {self.aggregate_type} {self.aggregate_id or ''}".strip()
            if self.aggregate_type
            else "",
        ]
        return ", ".join(part for part in parts if part)


def replay(
    conn: Connection,
    definition: Definition,
    selection: Selection,
    reason: str,
    *,
    rate: float = 1000.0,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Publish a selection again, in the order of positions, at most `rate` events a second.

    Writes who, when, why and what into the table OUTBOX_replay first. Returns the number of events.
    Raises UsageError for an empty selection or reason, Refused where the connector writes another form,
    Unreachable, and Failed when Kafka refuses an event; those before it stay published.
    """
    if not str(selection):
        raise UsageError("which events?", remedy="give --id, --since or --aggregate")
    if not reason.strip():
        raise UsageError("a replay needs a reason", remedy="say in --reason why")
    _refuse_other_form(conn, definition)
    names = relay_names(definition)
    _check_needs(conn, definition, names, selection)
    found = _rows(conn, definition, names, selection)
    if dry_run:
        return sum(len(chunk) for chunk in found)
    log = {"replay_log": names.qualified(f"{names.outbox}_replay")}
    conn.execute(sql.SQL(statements.get("replay_create_log")).format(**log))
    begun = conn.execute(
        sql.SQL(statements.get("replay_begin")).format(**log),
        {"reason": reason, "selection": str(selection)},
    ).fetchone()
    producer, sent, began = _producer(definition, names), 0, clock()
    for chunk in found:
        _publish(producer, definition, chunk)
        sent += len(chunk)
        say(f"{sent:,} events published again")
        sleep(max(0.0, sent / rate - (clock() - began)))
    end = sql.SQL(statements.get("replay_end")).format(**log)
    conn.execute(end, {"events": sent, "id": begun[0] if begun else None})
    return sent


def _refuse_other_form(conn: Connection, definition: Definition) -> None:
    """Refuse where the connector writes other records; it is asked where it is the one that publishes."""
    if publisher.standing(conn, definition) is not Publisher.CDC:
        wire_guard.refuse_other_form(definition, None)
        return
    with ConnectClient(definition.connect, timeout=CONNECT_SECONDS, patience=CONNECT_SECONDS) as client:
        wire_guard.refuse_other_form(definition, client)


def _check_needs(conn: Connection, definition: Definition, names: RelayNames, selection: Selection) -> None:
    """Refuse, before the log is written, what would stop a later step."""
    retained = _retained(conn, definition, names)
    wanted: dict[str, Sequence[str]] = dict.fromkeys(retained, ("SELECT",))
    wanted[f"{names.outbox}_replay"] = ("SELECT", "INSERT", "UPDATE")
    preflight.table_rights(conn, names.schema, wanted)
    values = _values(selection)
    types = [preflight.aggregate_types(conn, names.qualified(table), **values) for table in retained]
    preflight.event_topics(definition, set().union(*types))


def _retained(conn: Connection, definition: Definition, names: RelayNames) -> list[str]:
    """Name the tables that hold events which have been published."""
    live = schema.read(conn, names)
    tables = [names.history] if live.history else []
    if not live.settings or publisher.standing(conn, definition) is Publisher.CDC:
        tables.append(names.outbox)
    return tables


def _values(selection: Selection) -> dict[str, Any]:
    return {
        "ids": list(selection.ids) if selection.ids else None,
        "since": selection.since,
        "aggregate_type": selection.aggregate_type,
        "aggregate_id": selection.aggregate_id,
    }


def _rows(
    conn: Connection, definition: Definition, names: RelayNames, selection: Selection
) -> Iterator[list[Row]]:
    values = _values(selection)
    for table in _retained(conn, definition, names):
        places = {**identifiers(names, definition.outbox, 1), "table": names.qualified(table)}
        query = sql.SQL(statements.get("replay_read_rows")).format(**places)
        conn.execute(statements.get("replay_set_session"))
        # WITH HOLD: the result waits on the server, and no snapshot is held while we go slowly.
        with conn.cursor("replay", withhold=True, row_factory=args_row(Row)) as cursor:
            cursor.execute(query, values, binary=True)
            while rows := cursor.fetchmany(CHUNK):
                yield rows


def _producer(definition: Definition, names: RelayNames) -> Producer:
    config = producer_config(definition, names, 0, transactions=False)
    return Producer(
        {**config, "message.timeout.ms": int(FLUSH_SECONDS * 1000), "enable.gapless.guarantee": False}
    )


def _publish(producer: Producer, definition: Definition, rows: Sequence[Row]) -> None:
    """Publish some rows and wait until all are acknowledged."""
    refused: list[str] = []

    def delivered(error: Any, _: object) -> None:
        if error is not None:
            refused.append(error.str())

    try:
        for row in rows:
            made = row_record(row, definition.kafka.topic_of(row.aggregate_type))
            producer.produce(
                made.topic, made.value, made.key, headers=list(made.headers), on_delivery=delivered
            )
        left = producer.flush(FLUSH_SECONDS)
    except (KafkaException, SystemError) as error:
        raise Failed(f"Kafka refuses an event: {error}") from error
    if refused or left:
        cause = refused[0] if refused else "Kafka does not answer"
        raise Failed(f"{len(refused) + left} events were not published: {cause}", remedy="replay again")
