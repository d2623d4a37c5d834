"""The replication slot: where the connector reads from, and how it stands on a server.

A slot must be created after its publication: PostgreSQL up to 17 refuses to decode WAL written before
the publication existed, PostgreSQL 18 skips the rows in it without an error (measured on both).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.rows import TupleRow, class_row

from outbox_connectors.definition import Definition
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Failed
from outbox_pipeline.servers import lsn, postgres
from outbox_pipeline.servers.admin_rights import Rights
from outbox_pipeline.servers.plan import FieldChange, ObjectPlan, State, blocked, text_of
from outbox_pipeline.servers.positions import (
    PLUGIN,
    PositionCode,
    PositionFinding,
    SlotAndOffset,
    SlotHolder,
    SlotState,
    differences,
    judge,
)
from outbox_pipeline.servers.postgres import server_major
from outbox_pipeline.servers.slot_holder import Process, Whose

KIND = "slot"
PEEK_SECONDS = 5.0
LET_GO_SECONDS = 30.0
POLL_SECONDS = 0.2
TICKER_APPLICATION = "outboxctl watch"  # the application_name of whoever ticks


@dataclass(frozen=True, slots=True)
class LiveSlot:
    """A replication slot as the server describes it. LSNs are texts as PostgreSQL prints them."""

    plugin: str | None
    kind: str
    database: str | None
    temporary: bool
    active: bool
    active_pid: int | None
    active_user: str | None
    active_application: str | None
    wal_status: str | None
    restart_lsn: str | None
    confirmed_flush_lsn: str | None
    safe_wal_size: int | None
    conflicting: bool | None
    invalidation_reason: str | None
    failover: bool | None
    inactive_since: datetime | None

    @property
    def lost(self) -> bool:
        """Tell whether the slot can never be read again."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


@dataclass(frozen=True, slots=True)
class OpenWriter:
    """An open transaction that has written: a new slot waits for it, an old one keeps its WAL."""

    pid: int
    user: str
    application: str
    age_seconds: float

    def __str__(self) -> str:
        application = f", {self.application}" if self.application else ""
        return f"pid {self.pid} ({self.user}{application}, open for {self.age_seconds:.0f} s)"


def read(conn: psycopg.Connection[TupleRow], name: str) -> LiveSlot | None:
    """Read a slot; None when there is none. One query."""
    with conn.cursor(row_factory=class_row(LiveSlot)) as cursor:
        return cursor.execute(statements.get("read_slot", server_major(conn)), {"name": name}).fetchone()


def state_of(live: LiveSlot, holder: Whose, *, task_runs: bool = True) -> SlotState:
    """Give what is judged of a slot. `holder` says whose process it is that holds it, if one does."""
    process = Process(live.active_pid, live.active_user, live.active_application)
    return SlotState(
        kind=live.kind,
        plugin=live.plugin,
        database=live.database,
        temporary=live.temporary,
        lost=live.lost,
        invalidation_reason=live.invalidation_reason,
        restart=lsn.parsed(live.restart_lsn),
        confirmed=lsn.parsed(live.confirmed_flush_lsn),
        holder=SlotHolder(process, holder, task_runs) if live.active else None,
    )


def undecodable(conn: psycopg.Connection[TupleRow], live: LiveSlot | None, definition: Definition) -> str:
    """Say why an idle slot cannot be decoded; empty when it can, or when that cannot be found out.

    PostgreSQL up to 17 refuses WAL that is older than the publication, for ever. Decodes up to the
    first transaction of interest, for PEEK_SECONDS at most, and consumes nothing.
    """
    if live is None or live.active or live.lost or live.plugin != PLUGIN:
        return ""
    names = {"slot": definition.postgres.slot, "publication": definition.postgres.publication}
    try:
        with conn.transaction():
            conn.execute(statements.get("limit_statement"), {"milliseconds": int(PEEK_SECONDS * 1000)})
            conn.execute(statements.get("peek_slot"), names)
    except psycopg.errors.UndefinedObject as error:
        return error.diag.message_primary or "the publication does not exist"
    except (
        psycopg.errors.QueryCanceled,
        psycopg.errors.ObjectInUse,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.ObjectNotInPrerequisiteState,
    ):
        return ""
    return ""


def plan(live: LiveSlot | None, definition: Definition, rights: Rights, *, obstacle: str = "") -> ObjectPlan:
    """Compare a slot with the definition. Pure. `obstacle` is what `undecodable` found."""
    name = definition.postgres.slot
    if live is None:
        return _plan_missing(definition, rights)
    state = _state_under(live, definition)
    worst = judge(state)[0]
    if worst.code == PositionCode.SLOT_FOREIGN and state.slot is not None:
        return _plan_foreign(worst, state, state.slot)
    if worst.code == PositionCode.SLOT_LOST:
        return _plan_lost(live, worst, name)
    if worst.code == PositionCode.SLOT_TAKEN:
        return _plan_active(live, worst, definition)
    if obstacle:
        return _plan_too_old(live, definition, obstacle)
    if wants_failover(definition, rights.server_major) and not live.failover:
        return ObjectPlan(
            KIND,
            name,
            State.DIFFERENT,
            changes=(FieldChange("failover", "false", "true"),),
            statement=f"ALTER_REPLICATION_SLOT {_quoted(name)} (FAILOVER true)",
            why="on a replication connection, while the slot is not in use",
        )
    return ObjectPlan(KIND, name, State.PRESENT)


def is_lost(conn: psycopg.Connection[TupleRow], name: str) -> bool:
    """Tell whether there is a slot whose WAL the server has removed."""
    live = read(conn, name)
    return live is not None and live.lost


def open_writers(conn: psycopg.Connection[TupleRow]) -> tuple[OpenWriter, ...]:
    """Find the open transactions of the server that have written, oldest first. One query."""
    with conn.cursor(row_factory=class_row(OpenWriter)) as cursor:
        return tuple(cursor.execute(statements.get("read_open_writers")).fetchall())


def ticking(conn: psycopg.Connection[TupleRow]) -> bool:
    """Tell whether somebody sends the heartbeat of this database from outside."""
    row = conn.execute(statements.get("read_sessions_named"), {"name": TICKER_APPLICATION}).fetchone()
    return row is not None and row[0] > 0


def late_publication(conn: psycopg.Connection[TupleRow], definition: Definition) -> bool:
    """Tell whether the publication is known to be younger than what the slot has reached.

    False also where other slots hide it. PostgreSQL 18 skips the rows in between without an error.
    """
    names = {"slot": definition.postgres.slot, "publication": definition.postgres.publication}
    row = conn.execute(statements.get("read_publication_after_slot"), names).fetchone()
    return row is not None and row[0] is True


def drop(
    conn: psycopg.Connection[TupleRow],
    name: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Drop a slot, if it is there, and wait for whoever reads it to let go: a task lives on for a moment.

    Raises Failed when somebody still reads it after LET_GO_SECONDS.
    """
    deadline = clock() + LET_GO_SECONDS
    statement = sql.SQL(statements.get("drop_slot")).format(slot=sql.Literal(name))
    while (live := read(conn, name)) is not None:
        with suppress(psycopg.errors.ObjectInUse):
            conn.execute(statement)
            return
        if clock() >= deadline:
            reader = live.active_user or "somebody"
            raise Failed(
                f"is still in use by {reader} (pid {live.active_pid})",
                where=f"slot {name}",
                remedy="stop that consumer, then run this again",
            )
        sleep(POLL_SECONDS)


def set_failover(definition: Definition) -> None:
    """Make an existing slot a failover slot (PostgreSQL 17 and later). The slot must not be in use.

    There is no SQL function for it, so this opens a replication connection of the admin role.
    Raises Failed with the server's reason.
    """
    name = definition.postgres.slot
    with postgres.connect(
        definition.postgres.admin,
        application_name="outboxctl",
        dbname=definition.postgres.connector.database,
        replication=True,
    ) as conn:
        result = conn.pgconn.exec_(f"ALTER_REPLICATION_SLOT {_quoted(name)} (FAILOVER true)".encode())
        if result.status != ExecStatus.COMMAND_OK:
            reason = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"refused").decode()
            raise Failed(
                f"cannot become a failover slot: {reason}",
                where=f"slot {name}",
                remedy="stop the connector for a moment (outboxctl connectors stop), then apply again",
            )


def wants_failover(definition: Definition, major: int) -> bool:
    """Tell whether the slot should be a failover slot: asked for, and PostgreSQL 17 or later."""
    return definition.postgres.failover and major >= 17


def _plan_missing(definition: Definition, rights: Rights) -> ObjectPlan:
    name = definition.postgres.slot
    if not rights.may_replicate:
        return blocked(
            KIND,
            name,
            f"{rights.role} may not create replication slots",
            f"GRANT rds_replication TO {_quoted(rights.role)}"
            if rights.on_rds
            else f"ALTER ROLE {_quoted(rights.role)} REPLICATION",
        )
    found = (
        sql.SQL(statements.get("create_slot", rights.server_major)).format(
            slot=sql.Literal(name), failover=sql.Literal(definition.postgres.failover)
        ),
    )
    return ObjectPlan(KIND, name, State.MISSING, statement=text_of(found), sql=found)


def _state_under(live: LiveSlot, definition: Definition) -> SlotAndOffset:
    """Give what is judged where only the definition is known: neither the stored offset nor the connector."""
    ours = live.active_user == definition.postgres.connector.user
    return SlotAndOffset(
        definition.postgres.slot,
        definition.postgres.connector.database,
        state_of(live, Whose.CONNECTOR if ours else Whose.UNKNOWN, task_runs=False),
        offset=None,
        log_end=None,
    )


def _plan_foreign(found: PositionFinding, state: SlotAndOffset, slot: SlotState) -> ObjectPlan:
    changes = differences(slot, state.plugin, state.database)
    change = changes[0]
    return blocked(
        KIND,
        state.slot_name,
        f"exists but is not ours: {change.field} is {change.have}, wants {change.want}",
        found.next_step,
        changes=changes,
    )


def _plan_lost(live: LiveSlot, found: PositionFinding, name: str) -> ObjectPlan:
    reason = live.invalidation_reason or "wal_removed"
    return blocked(
        KIND,
        name,
        f"is lost ({reason}) and cannot be revived: events in the WAL it had to keep were not delivered",
        found.next_step,
        changes=[FieldChange("wal_status", f"lost ({reason})", "reserved")],
    )


def _plan_too_old(live: LiveSlot, definition: Definition, obstacle: str) -> ObjectPlan:
    return blocked(
        KIND,
        definition.postgres.slot,
        f"is older than the publication and cannot be decoded: {obstacle}",
        f"{past_its_publication(definition)}; then send the rows of {definition.outbox.table} again that "
        f"were written since {live.confirmed_flush_lsn}",
        changes=[FieldChange("created", "before the publication", "after the publication")],
    )


def past_its_publication(definition: Definition) -> str:
    """Say how to move a slot past WAL that is older than its publication, giving up the rows in it."""
    return (
        "outboxctl connectors stop; "
        f"SELECT pg_replication_slot_advance({_literal(definition.postgres.slot)}, pg_current_wal_lsn()); "
        "outboxctl connectors offsets reset; outboxctl connectors resume"
    )


def _plan_active(live: LiveSlot, found: PositionFinding, definition: Definition) -> ObjectPlan:
    name = definition.postgres.slot
    user = live.active_user or "an unknown role"
    application = f" ({live.active_application})" if live.active_application else ""
    return blocked(
        KIND,
        name,
        f"is in use by {user}{application}, pid {live.active_pid}, "
        f"not by {definition.postgres.connector.user}",
        f"{found.next_step}; where it is the connector itself, write its role into "
        "postgres.connector.user, else choose another postgres.slot",
        changes=[FieldChange("active for", user, definition.postgres.connector.user)],
    )


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _literal(name: str) -> str:
    return sql.Literal(name).as_string(None)
