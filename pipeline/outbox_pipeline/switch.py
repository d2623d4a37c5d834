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
from pathlib import Path
from threading import Event
from typing import LiteralString
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import canary, messages, postgres, provision, slots
from outbox_pipeline import sql as statements
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import Failed, Refused
from outbox_pipeline.ids import rows
from outbox_pipeline.ids.spool import Spool
from outbox_pipeline.ids.topics import Topics
from outbox_pipeline.provision import turn
from outbox_pipeline.relay import Mode, Settings, schema
from outbox_pipeline.relay.names import Names, identifiers, names_of
from outbox_pipeline.relay.session import read_settings
from outbox_pipeline.relay.wakeup import Waiter
from outbox_pipeline.relay.worker import Worker

Connection = psycopg.Connection[TupleRow]
Say = Callable[[str], None]

BATCH_ROWS = 5000
PATIENCE_SECONDS = 60.0
CANARY_SECONDS = 90.0
LOCK_MILLISECONDS = "10000"


@dataclass(frozen=True, slots=True)
class Switched:
    """What a switch moved: rows put into the history, or rows the relay carried to the end."""

    road: str
    rows: int


@dataclass(frozen=True, slots=True)
class _Place:
    conn: Connection
    definition: Definition
    names: Names
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
    short. Raises Failed where the relay is not set up or the connector does not stop.
    """
    place = _place(conn, definition)
    _check_history(place)
    with turn.hold(conn, definition.pipeline, say=say):
        swept = 0
        slot = slots.read(conn, definition.postgres.slot)
        if slot is not None:
            swept = _sweep(place)
            say(f"{swept:,} published rows moved to the history")
            _stop_connector(conn, client, definition, say)
            swept += _sweep(place)
            say(f"{swept:,} published rows moved to the history, the rest is the relay's")
            name = sql.Literal(definition.postgres.slot)
            conn.execute(sql.SQL(statements.get("drop_slot")).format(slot=name))
        place.run("switch_write_fence", until=None)
    return Switched("relay", swept)


def _place(conn: Connection, definition: Definition) -> _Place:
    names = names_of(definition)
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


def _stop_connector(conn: Connection, client: ConnectClient, definition: Definition, say: Say) -> None:
    """Stop the connector and wait until nobody reads the slot."""
    name = definition.connect.connector
    if client.config(name) is not None:
        client.stop(name)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (slot := slots.read(conn, definition.postgres.slot)) is not None and slot.active:
        if time.monotonic() > deadline:
            raise Failed(
                f"the slot is still read by pid {slot.active_pid}",
                where=f"slot {definition.postgres.slot}",
                remedy="stop whoever reads it, then switch again",
            )
        time.sleep(0.1)
    say(f"connector {name} is stopped")


def _sweep(place: _Place) -> int:
    """Move the rows whose ids are in a topic to the history, batch by batch."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="outbox-switch-")))
        written, delivered = (opened.enter_context(Spool(folder / name)) for name in ("written", "delivered"))
        rows.read(place.conn, [place.names.qualified(place.names.outbox)], None, written)
        for chunk in opened.enter_context(Topics(place.definition)).to_the_end():
            delivered.add(chunk)
        swept = 0
        for ours, theirs in zip(written.buckets(), delivered.buckets(), strict=True):
            published = list(set(ours) & set(theirs))
            for at in range(0, len(published), BATCH_ROWS):
                part = [UUID(bytes=one) for one in published[at : at + BATCH_ROWS]]
                place.run("switch_archive", ids=part)
            swept += len(published)
    return swept


def to_cdc(conn: Connection, client: ConnectClient, definition: Definition, *, say: Say) -> Switched:
    """Give the outbox back to the connector. Ends with a canary that travelled through it.

    Ends the sessions of the relay's workers; they refuse to go on while the slot exists. Writers wait
    while the fence is set, some ten milliseconds. Raises Refused while rows wait behind dead letters.
    """
    place = _place(conn, definition)
    _check_history(place)
    with turn.hold(conn, definition.pipeline, say=say), _gate(place):
        fence = place.run("switch_read_fence")
        until = fence[0] if fence else None
        if until is None:
            provision.apply_postgres(conn, definition, say=say)
            until = _set_fence(place)
            say(f"rows up to position {until} are the relay's")
        assert isinstance(until, int)
        carried = _drain(place, until, say)
        _start_connector(conn, client, definition, say)
        place.run("switch_write_fence", until=None)
    return Switched("cdc", carried)


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
    """Mark a place that no transaction straddles, in the table and in the log, and move the slot to it."""
    definition = place.definition
    with (
        postgres.connect(
            definition.postgres.admin,
            application_name="outboxctl switch",
            dbname=definition.postgres.connector.database,
        ) as other,
        place.conn.transaction(),
    ):
        place.conn.execute(statements.get("prune_set_lock_timeout"), {"milliseconds": LOCK_MILLISECONDS})
        place.run("switch_lock_outbox")
        ends = place.run("switch_read_ends")
        assert ends is not None
        until, end = ends
        # A commit of its own writes the log to disk up to here; a slot cannot move beyond that.
        messages.emit(other, definition.heartbeat_prefix, "switch", transactional=True)
        moved = {"slot": definition.postgres.slot, "lsn": end}
        place.conn.execute(statements.get("switch_advance_slot"), moved)
        place.run("switch_write_fence", until=until)
    assert isinstance(until, int)
    return until


def _drain(place: _Place, until: int, say: Say) -> int:
    """Carry the rows before the fence to the end."""
    worker = Worker(
        place.definition,
        place.names,
        place.shards,
        Settings(until_empty=True, mode=Mode.ARCHIVE),
        say=say,
        waiter=Waiter(),
        stop=Event(),
        until=until,
    )
    carried = worker.run().published
    left = place.run("switch_count_left", until=until)
    if left is not None and left[0]:
        raise Refused(
            f"{left[0]} rows wait behind dead letters, and the connector would never publish them",
            remedy="requeue or discard: outboxctl dead-letters outbox, then switch again",
        )
    say(f"{carried:,} rows carried to the end")
    return carried


def _start_connector(conn: Connection, client: ConnectClient, definition: Definition, say: Say) -> None:
    name = definition.connect.connector
    status = client.status(name) if client.config(name) is not None else None
    if status is not None and status.state == "STOPPED":
        client.reset_offsets(name)  # its stored position belongs to the slot that is gone
        client.resume(name)
    else:
        provision.apply(conn, client, definition, say=say)
    travelled = canary.travel(conn, definition, timeout_seconds=CANARY_SECONDS)
    say(f"connector {name} works: a canary took {travelled.seconds * 1000:.0f} ms")
