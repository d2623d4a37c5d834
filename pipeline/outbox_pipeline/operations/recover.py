"""Get a pipeline going again whose slot and connector no longer fit, and prove that nothing is missing.

Whatever happened (a slot lost or dropped, a failover, a restore), the way is the same. The connector
is stopped, its slot is moved to a position of the WAL that no transaction straddles, the rows before
that position which no topic has are published in their order, and then the connector starts with the
rows after it. Ids decide, never positions or times of a WAL that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_connectors.errors import ExitCode
from outbox_connectors.findings import Severity
from outbox_pipeline import provision
from outbox_pipeline import sql as statements
from outbox_pipeline.connect import message_gate, offsets, too_large_message, wire_guard
from outbox_pipeline.connect.answers import SourceOffset
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.connect.detaching import detach
from outbox_pipeline.errors import Refused
from outbox_pipeline.ids import publisher
from outbox_pipeline.ids.comparison import ComparedIds, SpooledTopics, compare, spooled_rows
from outbox_pipeline.ids.publisher import Publisher
from outbox_pipeline.operations import audit, connector_start, cutover, replay
from outbox_pipeline.operations.audit import AuditReport
from outbox_pipeline.operations.replay import Selection
from outbox_pipeline.provision import exclusive, preflight, tables
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import relay_names
from outbox_pipeline.servers import slots
from outbox_pipeline.servers.plan import ObjectPlan
from outbox_pipeline.servers.positions import RECOVERABLE

Connection = psycopg.Connection[TupleRow]
Say = Callable[[str], None]

SETTLE_SECONDS = 60.0
ASK_CHUNK = 50_000
UNFINISHED = 1  # a stored position that no slot can serve


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What is the case and what would be done. `broken`: slot and connector no longer fit."""

    code: str
    cause: str
    broken: bool
    steps: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Show it as JSON."""
        return {"code": self.code, "cause": self.cause, "broken": self.broken, "steps": list(self.steps)}


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result: how many events were published again, and the audit afterwards."""

    plan: RecoveryPlan
    published: int
    report: AuditReport

    @property
    def exit_code(self) -> ExitCode:
        """CRITICAL when an event is still missing."""
        return self.report.exit_code

    def document(self) -> dict[str, Any]:
        """Show it as JSON."""
        return {**self.plan.document(), "published": self.published, "audit": self.report.document()}


def plan(conn: Connection, client: ConnectClient, definition: Definition) -> RecoveryPlan:
    """Plan a recovery: what is broken, what would be done, and whether it can be done. Changes nothing.

    Raises Refused where a relay publishes the outbox, where another client reads the slot, where the
    connector writes other records than ours, and where something is missing that a step would need; and
    Unreachable.
    """
    if publisher.standing(conn, definition) is Publisher.RELAY:
        raise Refused(
            "a relay publishes this outbox: there is no slot to recover",
            where=f"table {definition.outbox.table}",
            remedy="outboxctl audit shows what is missing; after a restore run outboxctl switch --to relay",
        )
    _check_no_switch(conn, definition)
    wire_guard.refuse_other_form(definition, client)
    name = definition.connect.connector
    config = client.config(name)
    known = config or offsets.config_of(definition)
    positions = offsets.read(conn, known, client.offsets(name) if config is not None else None)
    worst = offsets.verdicts(positions)[0]
    broken = worst.severity is Severity.CRITICAL
    if broken and worst.code not in RECOVERABLE:
        raise Refused(worst.cause, remedy=worst.next_step)
    status = client.status(name) if config is not None else None
    if not broken and (stopped := too_large_message.look(conn, definition, status, positions)) is not None:
        worst, broken = stopped, True
    if broken:
        message_gate.refuse(definition, definition.heartbeat_prefix, "the fence")
    _check_needs(conn, client, definition, broken=broken)
    return RecoveryPlan(
        worst.code, worst.cause, broken, _steps(definition, positions, broken, status is not None)
    )


def _check_needs(conn: Connection, client: ConnectClient, definition: Definition, *, broken: bool) -> None:
    """Refuse, before the first change, what would stop a later step."""
    outbox = definition.outbox.table
    table = sql.Identifier(outbox.schema, outbox.name)
    wanted = {
        outbox.name: ("SELECT", preflight.LOCK),
        f"{outbox.name}_replay": ("SELECT", "INSERT", "UPDATE"),
    }

    def repaired(planned: ObjectPlan) -> bool:
        return planned.kind == slots.KIND and broken and slots.is_lost(conn, planned.name)

    def topics() -> None:
        preflight.event_topics(definition, preflight.aggregate_types(conn, table))

    # Without the table nothing else can be asked.
    provision.check(conn, client, definition, mended=repaired, error=Refused)
    if tables.read(conn, outbox) is None:
        return
    preflight.require(
        (
            partial(preflight.slot_rights, conn, definition),
            partial(preflight.table_rights, conn, outbox.schema, wanted),
            topics,
            partial(preflight.room_for_ids, conn, definition),
        )
    )


def _check_no_switch(conn: Connection, definition: Definition) -> None:
    """Refuse while some rows are still a relay's: the switch would publish them once more."""
    names = relay_names(definition)
    if not schema.read(conn, names).settings:
        return
    fenced = sql.SQL(statements.get("switch_read_fence")).format(settings=names.qualified(names.settings))
    row = conn.execute(fenced).fetchone()
    if row and row[0] is not None:
        raise Refused(
            "a switch to the connector was interrupted",
            where=f"table {definition.outbox.table}",
            remedy="run outboxctl switch --to cdc again, or --to relay where the slot is gone",
        )


def _steps(
    definition: Definition, positions: offsets.Positions, broken: bool, registered: bool
) -> tuple[str, ...]:
    name, slot = definition.connect.connector, definition.postgres.slot
    audited = "compare the ids of outbox and topics: nothing may be missing"
    if not broken:
        return (
            f"let connector {name} run and wait for a canary",
            "publish rows that no topic has",
            audited,
        )
    lost = positions.slot is not None and positions.slot.lost
    steps = (
        f"stop connector {name} and forget its offset" if registered else f"connector {name} is not there",
        f"drop slot {slot}, which is lost" if lost else f"keep slot {slot}" if positions.slot else "",
        "make what is missing in PostgreSQL: publication, slot",
        f"lock {definition.outbox.table} for a moment and move the slot to the end of the log",
        "publish the rows before that place which no topic has, in their order",
        f"start connector {name} and wait for a canary",
        audited,
    )
    return tuple(step for step in steps if step)


def recover(
    conn: Connection,
    client: ConnectClient,
    definition: Definition,
    *,
    since: datetime | None = None,
    rate: float = 5000.0,
    settle_seconds: float = SETTLE_SECONDS,
    say: Say,
) -> Recovered:
    """Repair what `plan` finds and publish what is missing. Interrupted at any point, call it again.

    Events of one aggregate keep their order. `since` leaves out rows of events that occurred before:
    needed where the topics no longer hold what they had, and no row tells where that begins. Takes
    about 100 bytes of memory for each event of the gap. Raises Failed, Refused and Unreachable.
    """
    with exclusive.hold(conn, definition.pipeline, say=say):
        found = plan(conn, client, definition)
        say(found.cause)
        publisher.note_connector(conn, definition, "recover")
        published = 0
        if found.broken:
            _stop(conn, client, definition, say)
            _make_slot(conn, definition, say)
            until = cutover.establish(conn, definition)
            published = _close_gap(conn, definition, since, until, found.cause, rate, say)
        connector_start.start(conn, client, definition, outdated=_unfinished, say=say)
        report = audit.audit(conn, definition, since=since, settle_seconds=settle_seconds, say=say)
        if report.missing and not found.broken:
            # Nothing is in flight any more: these were missing before.
            published += _close_gap(conn, definition, since, None, "left behind", rate, say)
            report = audit.audit(conn, definition, since=since, settle_seconds=settle_seconds, say=say)
    return Recovered(found, published, report)


def _stop(conn: Connection, client: ConnectClient, definition: Definition, say: Say) -> None:
    """Stop the connector and invalidate its offset, which belongs to a WAL or a slot that is gone.

    An offset older than every slot shows until the gap is closed that the recovery is not finished.
    """
    name = definition.connect.connector
    if client.config(name) is None:
        return
    stored = client.offsets(name)
    detach(conn, client, definition, lambda known: client.set_offset(known, UNFINISHED), again="recover")
    say(f"connector {name} is stopped; its offset was {dict(stored.raw) if stored else 'none'}")


def _make_slot(conn: Connection, definition: Definition, say: Say) -> None:
    slot = slots.read(conn, definition.postgres.slot)
    if slot is not None and slot.lost:
        slots.drop(conn, definition.postgres.slot)
        say(f"slot {definition.postgres.slot}: dropped, it was lost")
    provision.apply_postgres(conn, definition, say=say)


def _unfinished(stored: SourceOffset | None) -> bool:
    """Tell whether an offset is the mark of an unfinished recovery and no position to resume from."""
    return stored is not None and stored.resume_at == UNFINISHED


# -- the gap -----------------------------------------------------------------------------------------


def _close_gap(
    conn: Connection,
    definition: Definition,
    since: datetime | None,
    until: int | None,
    cause: str,
    rate: float,
    say: Say,
) -> int:
    ids = gap(conn, definition, since, until)
    say(f"{len(ids):,} rows are in no topic")
    if not ids:
        return 0
    reason = f"recover: {cause}"
    return replay.replay(
        conn, definition, Selection([UUID(bytes=one) for one in ids]), reason, rate=rate, say=say
    )


def gap(conn: Connection, definition: Definition, since: datetime | None, until: int | None) -> list[bytes]:
    """Find the ids of rows, up to a position, that no topic has.

    Where the topics have been trimmed, a row without a record may have had one. The first row that has
    a record tells where the topics begin; what is before it is left out. Raises Refused where no row
    has one, and Unreachable.
    """
    outbox = definition.outbox.table
    table = sql.Identifier(outbox.schema, outbox.name)
    with (
        spooled_rows(conn, [table], since=since, until=until) as rows,
        SpooledTopics(definition) as records,
    ):
        records.read_on()
        missing = [one for part in compare(rows, records.ids) for one in part.missing]
        if not missing or since is not None or not records.topics.trimmed():
            return missing
        first = _first_delivered(conn, table, compare(rows, records.ids))
        if first is None:
            raise Refused(
                f"{len(missing):,} rows are in no topic, but the topics have been trimmed, "
                "and which of them they had is not known",
                where=f"table {outbox}",
                remedy="say with --since from when on events may be missing",
            )
        return _behind(conn, table, missing, first)


def _first_delivered(conn: Connection, table: sql.Identifier, compared: Iterable[ComparedIds]) -> int | None:
    query = sql.SQL(statements.get("recover_first_position")).format(table=table)
    first: int | None = None
    for part in compared:
        published = [UUID(bytes=one) for one in part.published]
        for at in range(0, len(published), ASK_CHUNK):
            row = conn.execute(query, {"ids": published[at : at + ASK_CHUNK]}).fetchone()
            if row and row[0] is not None:
                first = row[0] if first is None else min(first, row[0])
    return first


def _behind(conn: Connection, table: sql.Identifier, ids: list[bytes], position: int) -> list[bytes]:
    query = sql.SQL(statements.get("recover_read_behind")).format(table=table)
    found: list[bytes] = []
    for at in range(0, len(ids), ASK_CHUNK):
        part = [UUID(bytes=one) for one in ids[at : at + ASK_CHUNK]]
        found += [row[0].bytes for row in conn.execute(query, {"ids": part, "position": position})]
    return found
