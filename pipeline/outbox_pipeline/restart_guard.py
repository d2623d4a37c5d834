"""Refuse to restart a connector at a moment at which Debezium would lose rows.

In logical decoding the position of a short transaction's COMMIT can equal the position of the next
row of a longer transaction that was open meanwhile. A connector that restarts from such a position
takes that row, and all rows of its transaction before it, as delivered already, without a warning
(Debezium dbz#76). Debezium 3.7 recognises the case when the stored offset is of type COMMIT, but
not when it is of type BEGIN; 3.6 in neither (measured on 3.6.1.Final, 3.7.0.Final, PostgreSQL 18).
It takes both: a stored offset of such a type, and a transaction that has written the outbox and is
still open. So a restart is safe as soon as one of them is gone.

The guard looks once, just before; an offset stored a moment later is not seen by it. A pause is no
restart: the task keeps its replication connection and its place in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox_connectors.profile import FIXES_COMMIT_OFFSETS, Version
from outbox_pipeline import sql
from outbox_pipeline.connect import SourceOffset
from outbox_pipeline.errors import Refused


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has written the outbox and may still write more, or is prepared (two-phase)."""

    pid: int | None  # None: prepared, no process holds it
    gid: str | None  # the name of a prepared transaction
    user: str
    application: str
    age_seconds: float

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid is not None else f"prepared transaction {self.gid!r}"
        application = f", application {self.application}" if self.application else ""
        return f"{who} (user {self.user}{application}, open for {self.age_seconds:.0f} s)"


def risky_types(debezium: Version | None) -> frozenset[str]:
    """Name the types of a stored offset from which this version may lose rows; None: an unknown version."""
    if debezium is not None and debezium >= FIXES_COMMIT_OFFSETS:
        return frozenset({"BEGIN"})
    return frozenset({"BEGIN", "COMMIT"})


def risky(offset: SourceOffset | None, debezium: Version | None) -> bool:
    """Tell whether the stored offset alone makes a loss possible, so that the database must be asked."""
    return offset is not None and offset.message_type in risky_types(debezium)


def open_transactions(conn: psycopg.Connection[Any], publication: str) -> tuple[OpenTransaction, ...]:
    """Find the transactions, prepared ones included, that have written a published table, oldest first.

    Reads pg_locks and pg_stat_activity in one statement; takes no lock on any table. A role without
    pg_read_all_stats sees them too, but not their application and age.
    """
    with conn.cursor(row_factory=class_row(OpenTransaction)) as cursor:
        cursor.execute(sql.get("read_open_outbox_transactions"), {"publication": publication})
        return tuple(cursor.fetchall())


def reason_to_wait(
    offset: SourceOffset | None, debezium: Version | None, transactions: Sequence[OpenTransaction]
) -> str:
    """Say why a restart could lose rows now; empty when it could not."""
    if offset is None or not risky(offset, debezium) or not transactions:
        return ""
    more = f" and {len(transactions) - 1} more" if len(transactions) > 1 else ""
    return (
        f"rows could be lost: the stored offset is of type {offset.message_type} and an outbox "
        f"transaction is open: {transactions[0]}{more}"
    )


def refuse_if_risky(
    action: str,
    offset: SourceOffset | None,
    debezium: Version | None,
    transactions: Sequence[OpenTransaction],
) -> None:
    """Raise Refused, naming the oldest transaction, when `action` could lose rows now."""
    reason = reason_to_wait(offset, debezium, transactions)
    if reason:
        raise Refused(
            f"{action} refused, {reason}",
            remedy="wait until it ends, or end it, then repeat; --force goes ahead and may lose its rows",
        )
