"""Regular maintenance of a running outbox: create the partitions of the coming days, prune old rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition, Partitioning
from outbox_pipeline import sql as statements
from outbox_pipeline.errors import Refused
from outbox_pipeline.operations import prune
from outbox_pipeline.provision import preflight, tables
from outbox_pipeline.servers import admin_rights, postgres
from outbox_pipeline.servers.plan import ChangeKind, State

APPLICATION_NAME = "outboxctl watch tidy"
LOCK_MILLISECONDS = "5000"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What one run of the maintenance did."""

    made: tuple[str, ...]  # partitions created
    dropped: tuple[str, ...]  # partitions dropped
    rows: int  # removed, those of dropped partitions included

    def __str__(self) -> str:
        parts = [f"partition {name} made" for name in self.made]
        parts += [f"partition {name} dropped" for name in self.dropped]
        return ", ".join([*parts, f"{self.rows:,} old rows removed"] if self.rows else parts)


def maintain(definition: Definition, say: Say) -> MaintenanceResult:
    """Make the partitions of the days to come, then prune as `outboxctl prune` does.

    Commits step by step, so an interruption leaves the rest for the next time. Partitions come first:
    a row that finds none goes to the default one, which then keeps that day from getting its own. Waits
    at most LOCK_MILLISECONDS for a lock. Raises OutboxError (Refused where the role is not the owner of
    the table) and psycopg.Error.
    """
    table = definition.outbox.table
    with postgres.as_admin(definition, APPLICATION_NAME) as conn:
        try:
            preflight.table_rights(conn, table.schema, {table.name: ("SELECT", "DELETE")})
        except Refused as error:
            raise _not_the_owner(conn, definition, error.problem) from error
        try:
            return _maintain(conn, definition, say)
        except psycopg.errors.InsufficientPrivilege as error:
            problem = error.diag.message_primary or "permission denied"
            raise _not_the_owner(conn, definition, problem) from error


def _not_the_owner(conn: psycopg.Connection[TupleRow], definition: Definition, problem: str) -> Refused:
    return Refused(
        f"role {conn.info.user} may not tidy: {problem}",
        where=f"table {definition.outbox.table}",
        remedy="watch as the table's owner, or with --no-tidy and run outboxctl prune as the owner",
    )


def _maintain(conn: psycopg.Connection[TupleRow], definition: Definition, say: Say) -> MaintenanceResult:
    (now,) = conn.execute(statements.get("prune_read_clock")).fetchone() or (None,)
    assert now is not None
    made = make_ahead(conn, definition, now)
    done = prune.prune(conn, definition, now, say=say)
    return MaintenanceResult(made, tuple(done.partitions), done.rows)


def make_ahead(conn: psycopg.Connection[TupleRow], definition: Definition, now: datetime) -> tuple[str, ...]:
    """Create the missing partitions of today and the days ahead, and name them. Changes nothing else.

    One transaction; adding a partition locks the table for the moment (PostgreSQL docs: ACCESS
    EXCLUSIVE on the default partition). Raises Refused where the table is not as the definition has it.
    """
    outbox = definition.outbox
    if outbox.partition is not Partitioning.DAILY:
        return ()
    live, today = tables.read(conn, outbox.table), now.date()
    taken = tables.days_in_default(conn, live, outbox, today)
    planned = tables.plan(live, outbox, admin_rights.read(conn, outbox.table.schema), today, taken)
    if live is None or planned.state is State.BLOCKED:
        raise Refused(
            planned.why or "does not exist",
            where=f"table {outbox.table}",
            remedy=planned.remedy or "run outboxctl apply",
        )
    wanted = [
        (change, statement)
        for change, statement in zip(planned.changes, planned.sql, strict=True)
        if change.kind in (ChangeKind.MISSING_PARTITION, ChangeKind.PARTITION_PARAMETERS)
    ]
    if wanted:
        with conn.transaction():
            conn.execute(statements.get("limit_lock_wait"), {"milliseconds": LOCK_MILLISECONDS})
            for _, statement in wanted:
                conn.execute(statement)
    return tuple(change.subject for change, _ in wanted if change.kind is ChangeKind.MISSING_PARTITION)
