"""Refuse to restart a connector at a moment at which Debezium would lose rows.

In logical decoding the position of a short transaction's COMMIT can equal the position of a row of a
longer transaction that was open meanwhile. A connector that restarts from that position, and gets the
longer transaction first, takes that row and all rows of its transaction before it as delivered, without
a warning (Debezium dbz#76). It depends on the type of the stored offset, measured on PostgreSQL 18:

    BEGIN     3.6.1 and 3.7.0 lose rows of the transaction that begins there (it has committed already)
    COMMIT    3.6.1 loses rows of a transaction that is still open; 3.7.0 recognises the case
    INSERT, MESSAGE    nothing is lost

A running connector moves on to a harmless offset by itself. For one that is stopped or stuck there is
`step_back`: one byte earlier no record begins, so nothing is taken for delivered.

The guard looks once, just before; an offset stored a moment later is not seen by it. A pause is no
restart: the task keeps its replication connection and its place in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox_connectors.profile import FIXES_COMMIT_OFFSETS, Version
from outbox_pipeline import sql
from outbox_pipeline.connect.client import ConnectClient, SourceOffset
from outbox_pipeline.errors import Refused
from outbox_pipeline.servers import lsn


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


def step_back(offset: SourceOffset) -> int | None:
    """Give the position to resume from instead of a risky one. Nothing is skipped or repeated by it.

    Log records are aligned to eight bytes, so that none begins one byte before a stored position.
    """
    return None if offset.resume_at is None else offset.resume_at - 1


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
    """Say why a restart could lose rows now; empty when it could not. Pure."""
    if offset is None or offset.message_type not in risky_types(debezium):
        return ""
    if offset.message_type == "BEGIN":
        return "rows could be lost: the stored offset is the BEGIN of an undelivered transaction"
    if not transactions:
        return ""
    more = f" and {len(transactions) - 1} more" if len(transactions) > 1 else ""
    return (
        f"rows could be lost: the stored offset is of type {offset.message_type} and an outbox "
        f"transaction is open: {transactions[0]}{more}"
    )


def protect(
    client: ConnectClient, name: str, action: str, database: Callable[[str], psycopg.Connection[Any]]
) -> None:
    """Raise Refused when `action`, which restarts or stops the connector's task, could lose rows now.

    `database` connects to the database it is given the name of; it is called only when open
    transactions decide. Nothing is changed.
    """
    offset = client.offsets(name)
    debezium = running_version(client, name)
    if offset is None or offset.message_type not in risky_types(debezium):
        return
    reason = reason_to_wait(offset, debezium, ())
    if not reason:
        config = client.config(name) or {}
        with database(config.get("database.dbname", "")) as conn:
            transactions = open_transactions(conn, config.get("publication.name", "dbz_publication"))
        reason = reason_to_wait(offset, debezium, transactions)
    if reason:
        raise Refused(f"{action} of connector {name} refused, {reason}", remedy=_remedy(offset))


def running_version(client: ConnectClient, name: str) -> Version | None:
    """Tell which Debezium version runs this connector; None when Connect (before 4.1) does not say."""
    status = client.status(name)
    if status is not None and status.version:
        return Version.parse(status.version)
    return client.debezium_version()


def _remedy(offset: SourceOffset) -> str:
    position = step_back(offset)
    back = f"stop --force, offsets set {lsn.text(position)}, resume" if position is not None else "--force"
    return f"wait until the stored offset has moved on and repeat; where it is stuck: {back}"
