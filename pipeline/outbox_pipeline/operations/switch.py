"""Switch a live outbox from the connector to the relay, and back; no event is lost or published by both.

To the relay: the connector is stopped and its slot goes only after every row that is in a topic, by
id, has left the outbox for the history. What remains is what the connector has not published.

To the connector: the relay's workers are kept out, a slot is created, and a short lock on the outbox
establishes a cutover, a position that no transaction straddles. The relay publishes the rows before it;
the rows after it are the connector's, which starts when the others are published.

Interrupted at any point, the same call goes on: what was reached is read from the live objects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import LiteralString
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import provision
from outbox_pipeline import sql as statements
from outbox_pipeline.connect import message_gate, wire_guard
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.connect.detaching import detach
from outbox_pipeline.errors import Failed, Refused
from outbox_pipeline.ids import publisher
from outbox_pipeline.ids.comparison import SpooledTopics, compare, spooled_rows
from outbox_pipeline.ids.publisher import Publisher
from outbox_pipeline.operations import connector_start, cutover
from outbox_pipeline.provision import exclusive, preflight
from outbox_pipeline.relay import Mode, RelaySettings, schema
from outbox_pipeline.relay.names import RelayNames, identifiers, relay_names
from outbox_pipeline.relay.session import read_settings
from outbox_pipeline.relay.wakeup import Waiter
from outbox_pipeline.relay.worker import RelayWorker
from outbox_pipeline.servers import slots

Connection = psycopg.Connection[TupleRow]
Say = Callable[[str], None]

BATCH_ROWS = 5000
PATIENCE_SECONDS = 180.0
BEGUN = -1  # stored instead of a position: the switch has begun, its cutover is not established yet


@dataclass(frozen=True, slots=True)
class Switched:
    """What a switch did: rows moved to the history, or rows that the relay published before the cutover."""

    road: str
    rows: int


@dataclass(frozen=True, slots=True)
class _RelayedOutbox:
    conn: Connection
    definition: Definition
    names: RelayNames
    shards: int

    def run(self, name: LiteralString, **values: object) -> tuple[object, ...] | None:
        query = sql.SQL(statements.get(name)).format(
            **identifiers(self.names, self.definition.outbox, self.shards)
        )
        cursor = self.conn.execute(query, values)
        return cursor.fetchone() if cursor.description else None


def to_relay(conn: Connection, client: ConnectClient, definition: Definition, *, say: Say) -> Switched:
    """Switch the outbox from the connector to the relay, which may start afterwards.

    Published rows are moved to the history twice: first while the connector works, so that the second
    time, while nothing is published, is short. Also repairs an outbox whose slot was dropped, and a
    restored one. Raises Failed where the relay is not set up or the connector does not stop.
    """
    relayed = check_to_relay(conn, client, definition)
    with exclusive.hold(conn, definition.pipeline, say=say), SpooledTopics(definition) as records:
        moved = _archive_published(relayed, records)
        say(f"{moved:,} published rows moved to the history")
        if publisher.standing(conn, definition) is not Publisher.RELAY:
            # The offset belongs to the slot, which goes too.
            detach(conn, client, definition, client.reset_offsets, again="switch")
            say(f"connector {definition.connect.connector} is stopped")
            moved += _archive_published(relayed, records)  # the connector publishes nothing any more
            say(f"{moved:,} published rows moved to the history, the rest is the relay's")
        if slots.read(conn, definition.postgres.slot) is not None:
            publisher.write(conn, definition, Publisher.CDC, "switch to relay")  # until the rest is done
            _drop_slot(conn, definition)
        relayed.run("switch_write_fence", until=None)
        publisher.write(conn, definition, Publisher.RELAY, "switch to relay")
    return Switched("relay", moved)


def check_to_relay(conn: Connection, client: ConnectClient, definition: Definition) -> _RelayedOutbox:
    """Raise where a switch to the relay could not go through to its end. Changes nothing.

    Raises Failed where the relay is not set up, Refused for the connector's form of records, for rights,
    topics and room that are missing, and Unreachable.
    """
    relayed = _relayed_outbox(conn, definition)
    _check_history(relayed)
    wire_guard.refuse_other_form(definition, client)
    preflight.require(_needs(relayed))
    return relayed


def check_to_cdc(conn: Connection, client: ConnectClient, definition: Definition) -> _RelayedOutbox:
    """Raise where a switch to the connector could not go through to its end. Changes nothing.

    As `check_to_relay`, and Refused while rows wait behind dead letters or an object that `apply` makes is
    blocked, Failed where Connect refuses the configuration.
    """
    relayed = _relayed_outbox(conn, definition)
    _check_history(relayed)
    wire_guard.refuse_other_form(definition, client)
    message_gate.refuse(definition, definition.heartbeat_prefix, "the fence")
    provision.check(conn, client, definition, error=Refused)
    if publisher.standing(conn, definition) is Publisher.RELAY:
        _refuse_left(relayed.run("switch_count_waiting"))
    preflight.require(_needs(relayed))
    return relayed


def _needs(relayed: _RelayedOutbox) -> tuple[Callable[[], None], ...]:
    conn, definition, names = relayed.conn, relayed.definition, relayed.names
    wanted = {
        names.outbox: ("SELECT", "DELETE", preflight.LOCK),
        names.history: ("SELECT", "INSERT"),
        names.settings: ("SELECT", "UPDATE"),
    }

    def topics() -> None:
        types = preflight.aggregate_types(conn, names.qualified(names.outbox))
        preflight.event_topics(definition, types)

    return (
        partial(preflight.slot_rights, conn, definition),
        partial(preflight.table_rights, conn, names.schema, wanted),
        topics,
        partial(preflight.room_for_ids, conn, definition),
    )


def _relayed_outbox(conn: Connection, definition: Definition) -> _RelayedOutbox:
    names = relay_names(definition)
    found = read_settings(conn, names)
    if found is None:
        raise Failed(
            f"outbox {definition.outbox.table} is not set up for a relay",
            remedy="run outboxctl relay --init --archive",
        )
    if found[0] != definition.pipeline:
        raise Refused(f"outbox {definition.outbox.table} is relayed by pipeline {found[0]}")
    return _RelayedOutbox(conn, definition, names, found[1])


def _check_history(relayed: _RelayedOutbox) -> None:
    if not schema.read(relayed.conn, relayed.names).history:
        raise Failed("the relay has no history", remedy="run outboxctl relay --init --archive")


def _drop_slot(conn: Connection, definition: Definition) -> None:
    slots.drop(conn, definition.postgres.slot)


def _archive_published(relayed: _RelayedOutbox, records: SpooledTopics) -> int:
    """Move the rows whose ids are in a topic to the history, batch by batch. Returns their number.

    Called again with the same `records`, it reads only those that have come since.
    """
    moved = 0
    records.read_on()
    with spooled_rows(relayed.conn, [relayed.names.qualified(relayed.names.outbox)]) as rows:
        for part in compare(rows, records.ids):
            published = list(part.published)
            for at in range(0, len(published), BATCH_ROWS):
                ids = [UUID(bytes=one) for one in published[at : at + BATCH_ROWS]]
                relayed.run("switch_archive", ids=ids)
            moved += len(published)
    return moved


def to_cdc(conn: Connection, client: ConnectClient, definition: Definition, *, say: Say) -> Switched:
    """Switch the outbox from the relay to the connector, and prove with a canary that it works.

    Ends the sessions of the relay's workers, which refuse to start while the slot exists. Writers wait
    while the cutover is established, some ten milliseconds. Raises Refused while rows wait behind dead
    letters, and where a slot is missing that the connector has published from.
    """
    relayed = check_to_cdc(conn, client, definition)
    with exclusive.hold(conn, definition.pipeline, say=say), _workers_kept_out(relayed):
        found = relayed.run("switch_read_fence")
        until = found[0] if found else None
        slot = slots.read(conn, definition.postgres.slot)
        if until is None and slot is not None and publisher.written(conn, definition) is not Publisher.RELAY:
            return _stay(conn, client, definition, say)
        if until is None and slot is None:
            publisher.admit_relay(conn, definition)  # nothing may have been published that is still here
        if until is None or until == BEGUN:
            relayed.run("switch_write_fence", until=BEGUN)  # the slot will be ours, not a live connector's
            provision.apply_postgres(conn, definition, say=say)
            until = _set_cutover(relayed)
            say(f"rows up to position {until} are the relay's")
        elif slot is None or slot.lost:
            raise Refused(
                "the slot was lost in the middle of a switch",
                where=f"slot {definition.postgres.slot}",
                remedy="run outboxctl switch --to relay, then --to cdc again",
            )
        assert isinstance(until, int)
        carried = _relay_rest(relayed, until, say)
        _start_connector(conn, client, definition, say)
        relayed.run("switch_write_fence", until=None)
    return Switched("cdc", carried)


def _stay(conn: Connection, client: ConnectClient, definition: Definition, say: Say) -> Switched:
    """Keep the connector that has the outbox already. Raises Refused where its offset was removed."""
    name = definition.connect.connector
    status = client.status(name) if client.config(name) is not None else None
    if status is not None and status.state == "STOPPED":
        if client.offsets(name) is None:
            raise Refused(
                "a switch to the relay has begun and was interrupted",
                where=f"connector {name}",
                remedy="finish it: run outboxctl switch --to relay, then --to cdc",
            )
        client.resume(name)
    connector_start.prove(conn, definition, say)
    return Switched("cdc", 0)


@contextmanager
def _workers_kept_out(relayed: _RelayedOutbox) -> Iterator[None]:
    """Keep the relay's workers out for the duration of a block."""
    lock = {"lock": relayed.names.lock}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        row = relayed.conn.execute(statements.get("switch_close_gate"), lock).fetchone()
        if row and row[0]:
            break
        if time.monotonic() > deadline:
            raise Failed("workers of the relay come back again and again", remedy="stop the relay first")
        relayed.conn.execute(statements.get("switch_end_workers"), lock)
        time.sleep(0.05)
    try:
        yield
    finally:
        if not relayed.conn.closed and not relayed.conn.broken:
            relayed.conn.execute(statements.get("switch_open_gate"), lock)


def _set_cutover(relayed: _RelayedOutbox) -> int:
    """Establish the cutover, and store its position and the new publisher in the same transaction."""

    def note(until: int) -> None:
        relayed.run("switch_write_fence", until=until)
        publisher.write(relayed.conn, relayed.definition, Publisher.CDC, "switch to cdc")

    return cutover.establish(relayed.conn, relayed.definition, note)


def _relay_rest(relayed: _RelayedOutbox, until: int, say: Say) -> int:
    """Publish the rows that are left for the relay, up to position `until`."""
    worker = RelayWorker(
        relayed.definition,
        relayed.names,
        relayed.shards,
        RelaySettings(until_empty=True, mode=Mode.ARCHIVE),
        say=say,
        waiter=Waiter(),
        stop=Event(),
        until=until,
    )
    carried = worker.run().published
    _refuse_left(relayed.run("switch_count_left", until=until))
    say(f"{carried:,} rows carried to the end")
    return carried


def _refuse_left(counted: tuple[object, ...] | None) -> None:
    if counted is not None and counted[0]:
        raise Refused(
            f"{counted[0]} rows wait behind dead letters, and the connector would never publish them",
            remedy="requeue or discard: outboxctl dead-letters outbox, then switch again",
        )


def _start_connector(conn: Connection, client: ConnectClient, definition: Definition, say: Say) -> None:
    # Whatever position is stored belongs to a slot that is gone.
    connector_start.start(conn, client, definition, outdated=lambda _: True, say=say)
