"""Where a connector would resume, compared with what its slot still holds, and what a change would skip.

Four positions of one log decide: `restart_lsn` (oldest WAL the slot keeps), `confirmed_flush_lsn`
(everything committed before it is never sent again), the stored offset (where Debezium asks to
resume) and the end of the log. The server sends each transaction whose COMMIT record starts at or
after the later of confirmed_flush_lsn and the position asked for, as a whole and in commit order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox_connectors.definition import Definition
from outbox_connectors.findings import Severity
from outbox_pipeline import sql
from outbox_pipeline.connect.client import SourceOffset
from outbox_pipeline.errors import Refused
from outbox_pipeline.servers import lsn, slots
from outbox_pipeline.servers.positions import (
    PLUGIN,
    PositionFinding,
    SlotAndOffset,
    StoredOffset,
    expected_plugin,
    judge,
)
from outbox_pipeline.servers.postgres import server_major
from outbox_pipeline.servers.slot_holder import Process, whose
from outbox_pipeline.servers.slots import LiveSlot

PEEK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Positions:
    """Everything that decides what a (re)start of the connector would do."""

    slot_name: str
    config: Mapping[str, str]
    offset: SourceOffset | None
    slot: LiveSlot | None
    log_end: int

    @property
    def database(self) -> str:
        """The database the connector reads."""
        return self.config.get("database.dbname", "")

    @property
    def restart(self) -> int | None:
        """The oldest position the slot keeps WAL for."""
        return lsn.parsed(self.slot.restart_lsn) if self.slot else None

    @property
    def confirmed(self) -> int | None:
        """The position up to which the consumer has confirmed."""
        return lsn.parsed(self.slot.confirmed_flush_lsn) if self.slot else None


@dataclass(frozen=True, slots=True)
class HeldTransaction:
    """A committed transaction that the slot can still send. Positions are integers."""

    commit_at: int  # start of its COMMIT record
    rows: int
    rows_up_to_position: int  # those at or before the position that was asked about
    meets_position: bool  # one of its rows, but not its first, lies exactly there
    rows_delivered: int = 0  # where it is the one whose rows were being delivered: those that were


@dataclass(frozen=True, slots=True)
class ResumeEffect:
    """What resuming at a position would do to the rows the slot still holds."""

    skipped: int  # never delivered before, and never again
    repeated: int  # delivered before, and once more


def read(conn: psycopg.Connection[Any], config: Mapping[str, str], offset: SourceOffset | None) -> Positions:
    """Read slot and end of the log beside a connector's stored offset. Two queries, no lock."""
    name = config.get("slot.name", "debezium")
    end = read_log_end(conn)
    return Positions(name, config, offset, slots.read(conn, name), end)


def read_log_end(conn: psycopg.Connection[Any]) -> int:
    """Read the end of the log. One query."""
    with psycopg.Cursor(conn) as cursor:
        row = cursor.execute(sql.get("read_log_end")).fetchone()
    assert row is not None  # a SELECT without FROM
    return lsn.parse(row[0])


def config_of(definition: Definition) -> Mapping[str, str]:
    """Give the properties that decide here, for a connector that is not registered yet."""
    return {
        "slot.name": definition.postgres.slot,
        "plugin.name": PLUGIN,
        "database.dbname": definition.postgres.connector.database,
        "snapshot.mode": "no_data",
    }


def peek(
    conn: psycopg.Connection[Any],
    slot: str,
    publication: str,
    position: int,
    offset: SourceOffset | None = None,
) -> tuple[HeldTransaction, ...]:
    """Read the transactions an idle slot still holds, without consuming them.

    Takes as long as decoding all WAL the slot keeps, at most PEEK_SECONDS. Raises the psycopg error
    of a slot that is active or lost, a missing publication, missing rights, or the time-out.
    """
    with conn.transaction(), conn.cursor(row_factory=class_row(HeldTransaction)) as cursor:
        cursor.execute(sql.get("limit_statement"), {"milliseconds": int(PEEK_SECONDS * 1000)})
        parameters = {
            "slot": slot,
            "publication": publication,
            "position": lsn.text(position),
            "stored": lsn.text((offset.lsn if offset else None) or 0),
            "stored_xid": str(offset.raw.get("txId")) if offset else "",
        }
        cursor.execute(sql.get("peek_slot_transactions", server_major(conn)), parameters)
        return tuple(cursor.fetchall())


def effect(
    held: Sequence[HeldTransaction], position: int, confirmed: int, offset: SourceOffset | None
) -> ResumeEffect:
    """Count the rows that resuming at `position` would skip, and those it would repeat.

    Skipped are the rows of transactions that commit before `position`; and, where a row of a
    later transaction lies exactly at `position`, all its rows up to there, because Debezium takes
    the row at the stored position as delivered. Not so its first row, at whose position its BEGIN
    lies as well (measured on Debezium 3.7.0.Final). Known to be delivered are the transactions that
    committed before the stored offset's last commit, and of the one it names the rows up to it.
    """
    delivered_up_to = max(confirmed, (offset.lsn_commit if offset else None) or 0)
    skipped = repeated = 0
    for transaction in held:
        gone = _gone(transaction, position)
        known = transaction.rows if transaction.commit_at < delivered_up_to else transaction.rows_delivered
        skipped += max(0, gone - known)
        repeated += max(0, known - gone)
    return ResumeEffect(skipped, repeated)


def _gone(transaction: HeldTransaction, position: int) -> int:
    if transaction.commit_at < position:
        return transaction.rows
    return transaction.rows_up_to_position if transaction.meets_position else 0


def verdicts(positions: Positions) -> tuple[PositionFinding, ...]:
    """Say what a start of the connector would meet, worst first; never empty. Pure."""
    return judge(state_of(positions))


def state_of(positions: Positions) -> SlotAndOffset:
    """Give what is judged: the slot with its holder, the stored offset, the log's end, the configuration."""
    slot, offset, config = positions.slot, positions.offset, positions.config
    state = None
    if slot is not None:
        process = Process(slot.active_pid, slot.active_user, slot.active_application)
        state = slots.state_of(slot, whose(process, config))
    return SlotAndOffset(
        positions.slot_name,
        positions.database,
        state,
        None if offset is None else StoredOffset(offset.resume_at),
        positions.log_end,
        expected_plugin(config),
        config.get("snapshot.mode", "initial"),
        config.get("offset.mismatch.strategy", "no_validation"),
    )


def refuse_unsafe_start(action: str, positions: Positions) -> None:
    """Raise Refused when starting the connector now would fail or skip events."""
    worst = verdicts(positions)[0]
    if worst.severity is Severity.CRITICAL:
        raise Refused(f"{action} refused: {worst.cause}", remedy=f"{worst.next_step}; --force goes ahead")
