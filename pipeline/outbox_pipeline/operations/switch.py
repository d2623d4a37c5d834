"""Hand a live outbox from the connector to the relay, and back, without a gap and without an overlap.

To the relay: the connector is stopped and its slot goes only after every row that is in a topic, by
id, has left the outbox for the history. What remains is what the connector has not published.

To the connector: the relay's workers are kept out, a slot is made, and a short lock on the outbox
marks a place in the log and in the table that no transaction straddles. Rows before it are carried
to the end by the relay, rows behind it are the connector's, which starts when the others are gone.

Interrupted at any point, the same call goes on: what was reached is read from the live objects.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import LiteralString, Self
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import provision
from outbox_pipeline import sql as statements
from outbox_pipeline.connect import canary, message_gate, wire_guard
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.connect.detaching import detach
from outbox_pipeline.errors import Failed, Refused
from outbox_pipeline.ids import in_tables, publisher
from outbox_pipeline.ids.in_topics import Topics
from outbox_pipeline.ids.publisher import Publisher
from outbox_pipeline.ids.spool import Spool
from outbox_pipeline.operations import cutover
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
CANARY_SECONDS = 180.0
BEGUN = -1  # a fence that is not set yet: the switch to the connector has begun


@dataclass(frozen=True, slots=True)
class Switched:
    """What a switch moved: rows put into the history, or rows the relay carried to the end."""

    road: str
    rows: int


@dataclass(frozen=True, slots=True)
class _Place:
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
    """Take the outbox from the connector. Afterwards a relay may start.

    The first sweep runs while the connector works, so that the second, when nothing is published, is
    short. Also mends an outbox whose slot somebody has dropped, and a restored one. Raises Failed
    where the relay is not set up or the connector does not stop.
    """
    place = check_to_relay(conn, client, definition)
    with exclusive.hold(conn, definition.pipeline, say=say), HistoryMove(place) as sweep:
        swept = sweep.run()
        say(f"{swept:,} published rows moved to the history")
        if publisher.standing(conn, definition) is not Publisher.RELAY:
            # The offset belongs to the slot, which goes too.
            detach(conn, client, definition, client.reset_offsets, again="switch")
            say(f"connector {definition.connect.connector} is stopped")
            swept += sweep.run()  # everything that will ever be published is there now
            say(f"{swept:,} published rows moved to the history, the rest is the relay's")
        if slots.read(conn, definition.postgres.slot) is not None:
            publisher.write(conn, definition, Publisher.CDC, "switch to relay")  # until the rest is done
            _drop_slot(conn, definition)
        place.run("switch_write_fence", until=None)
        publisher.write(conn, definition, Publisher.RELAY, "switch to relay")
    return Switched("relay", swept)


def check_to_relay(conn: Connection, client: ConnectClient, definition: Definition) -> _Place:
    """Raise where a switch to the relay could not go through to its end. Changes nothing.

    Raises Failed where the relay is not set up, Refused for the connector's form of records, for rights,
    topics and room that are missing, and Unreachable.
    """
    place = _place(conn, definition)
    _check_history(place)
    wire_guard.refuse_other_form(definition, client)
    preflight.require(_needs(place))
    return place


def check_to_cdc(conn: Connection, client: ConnectClient, definition: Definition) -> _Place:
    """Raise where a switch to the connector could not go through to its end. Changes nothing.

    As `check_to_relay`, and Refused while rows wait behind dead letters or an object that `apply` makes is
    blocked, Failed where Connect refuses the configuration.
    """
    place = _place(conn, definition)
    _check_history(place)
    wire_guard.refuse_other_form(definition, client)
    message_gate.refuse(definition, definition.heartbeat_prefix, "the fence")
    provision.check(conn, client, definition, error=Refused)
    if publisher.standing(conn, definition) is Publisher.RELAY:
        _refuse_left(place.run("switch_count_waiting"))
    preflight.require(_needs(place))
    return place


def _needs(place: _Place) -> tuple[Callable[[], None], ...]:
    conn, definition, names = place.conn, place.definition, place.names
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


def _place(conn: Connection, definition: Definition) -> _Place:
    names = relay_names(definition)
    found = read_settings(conn, names)
    if found is None:
        raise Failed(
            f"outbox {definition.outbox.table} is not set up for a relay",
            remedy="run outboxctl relay --init --archive",
        )
    if found[0] != definition.pipeline:
        raise Refused(f"outbox {definition.outbox.table} is relayed by pipeline {found[0]}")
    return _Place(conn, definition, names, found[1])


def _check_history(place: _Place) -> None:
    if not schema.read(place.conn, place.names).history:
        raise Failed("the relay has no history", remedy="run outboxctl relay --init --archive")


def _drop_slot(conn: Connection, definition: Definition) -> None:
    slots.drop(conn, definition.postgres.slot)


class HistoryMove:
    """Moves published rows to the history. A second run reads only the records that have come since."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            found = tempfile.TemporaryDirectory(prefix="outbox-switch-")
            self._folder = Path(opened.enter_context(found))
            self._delivered = opened.enter_context(Spool(self._folder / "delivered"))
            self._topics = opened.enter_context(Topics(self._place.definition))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def run(self) -> int:
        """Move the rows whose ids are in a topic, batch by batch. Returns their number."""
        place, swept = self._place, 0
        for chunk in self._topics.to_the_end():
            self._delivered.add(chunk)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, Spool(Path(folder) / "rows") as ours:
            in_tables.read(place.conn, [place.names.qualified(place.names.outbox)], None, ours)
            for mine, records in zip(ours.buckets(), self._delivered.buckets(), strict=True):
                published = list(set(mine) & set(records))
                for at in range(0, len(published), BATCH_ROWS):
                    part = [UUID(bytes=one) for one in published[at : at + BATCH_ROWS]]
                    place.run("switch_archive", ids=part)
                swept += len(published)
        return swept


def to_cdc(conn: Connection, client: ConnectClient, definition: Definition, *, say: Say) -> Switched:
    """Give the outbox back to the connector. Ends with a canary that travelled through it.

    Ends the sessions of the relay's workers; they refuse to go on while the slot exists. Writers wait
    while the fence is set, some ten milliseconds. Raises Refused while rows wait behind dead letters,
    and where a slot is missing that the connector has published from.
    """
    place = check_to_cdc(conn, client, definition)
    with exclusive.hold(conn, definition.pipeline, say=say), _gate(place):
        found = place.run("switch_read_fence")
        until = found[0] if found else None
        slot = slots.read(conn, definition.postgres.slot)
        if until is None and slot is not None and publisher.written(conn, definition) is not Publisher.RELAY:
            return _stay(conn, client, definition, say)
        if until is None and slot is None:
            publisher.admit_relay(conn, definition)  # nothing may have been published that is still here
        if until is None or until == BEGUN:
            place.run("switch_write_fence", until=BEGUN)  # the slot will be ours, not a live connector's
            provision.apply_postgres(conn, definition, say=say)
            until = _set_fence(place)
            say(f"rows up to position {until} are the relay's")
        elif slot is None or slot.lost:
            raise Refused(
                "the slot was lost in the middle of a switch",
                where=f"slot {definition.postgres.slot}",
                remedy="run outboxctl switch --to relay, then --to cdc again",
            )
        assert isinstance(until, int)
        carried = _drain(place, until, say)
        _start_connector(conn, client, definition, say)
        place.run("switch_write_fence", until=None)
    return Switched("cdc", carried)


def _stay(conn: Connection, client: ConnectClient, definition: Definition, say: Say) -> Switched:
    """Let the connector go on that has the outbox. Raises Refused where its offset was given up."""
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
    _prove(conn, definition, say)
    return Switched("cdc", 0)


@contextmanager
def _gate(place: _Place) -> Iterator[None]:
    """Keep the relay's workers out for the duration of a block."""
    lock = {"lock": place.names.lock}
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        row = place.conn.execute(statements.get("switch_close_gate"), lock).fetchone()
        if row and row[0]:
            break
        if time.monotonic() > deadline:
            raise Failed("workers of the relay come back again and again", remedy="stop the relay first")
        place.conn.execute(statements.get("switch_end_workers"), lock)
        time.sleep(0.05)
    try:
        yield
    finally:
        if not place.conn.closed and not place.conn.broken:
            place.conn.execute(statements.get("switch_open_gate"), lock)


def _set_fence(place: _Place) -> int:
    """Mark where the relay's rows end, move the slot there, and write both down at once."""

    def note(until: int) -> None:
        place.run("switch_write_fence", until=until)
        publisher.write(place.conn, place.definition, Publisher.CDC, "switch to cdc")

    return cutover.mark(place.conn, place.definition, note)


def _drain(place: _Place, until: int, say: Say) -> int:
    """Carry the rows before the fence to the end."""
    worker = RelayWorker(
        place.definition,
        place.names,
        place.shards,
        RelaySettings(until_empty=True, mode=Mode.ARCHIVE),
        say=say,
        waiter=Waiter(),
        stop=Event(),
        until=until,
    )
    carried = worker.run().published
    _refuse_left(place.run("switch_count_left", until=until))
    say(f"{carried:,} rows carried to the end")
    return carried


def _refuse_left(counted: tuple[object, ...] | None) -> None:
    if counted is not None and counted[0]:
        raise Refused(
            f"{counted[0]} rows wait behind dead letters, and the connector would never publish them",
            remedy="requeue or discard: outboxctl dead-letters outbox, then switch again",
        )


def _start_connector(conn: Connection, client: ConnectClient, definition: Definition, say: Say) -> None:
    name = definition.connect.connector
    status = client.status(name) if client.config(name) is not None else None
    if status is not None and status.state == "STOPPED":
        client.reset_offsets(name)  # its stored position belongs to the slot that is gone
        client.resume(name)
    else:
        provision.apply(conn, client, definition, say=say)
    _prove(conn, definition, say)


def _prove(conn: Connection, definition: Definition, say: Say) -> None:
    travelled = canary.travel(conn, definition, timeout_seconds=CANARY_SECONDS)
    name = definition.connect.connector
    say(f"connector {name} works: a canary took {travelled.seconds * 1000:.0f} ms")
