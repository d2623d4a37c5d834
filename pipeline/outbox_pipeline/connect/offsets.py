"""Where a connector would resume, compared with what its slot still holds, and what a change would skip.

Four positions of one log decide: `restart_lsn` (oldest WAL the slot keeps), `confirmed_flush_lsn`
(everything committed before it is never sent again), the stored offset (where Debezium asks to
resume) and the end of the log. The server sends each transaction whose COMMIT record starts at or
after the later of confirmed_flush_lsn and the position asked for, as a whole and in commit order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox_connectors.findings import Severity
from outbox_pipeline import sql
from outbox_pipeline.connect.client import SourceOffset
from outbox_pipeline.errors import Refused
from outbox_pipeline.servers import lsn, slots
from outbox_pipeline.servers.postgres import server_major
from outbox_pipeline.servers.slot_holder import DEBEZIUM, Process, Whose, whose
from outbox_pipeline.servers.slots import LiveSlot

_SNAPSHOTS_WITHOUT_OFFSET = frozenset({"initial", "always", "when_needed", "initial_only"})
_UNCHECKED = frozenset({"trust_slot", "trust_greater_lsn"})
PEEK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OffsetFinding:
    """One thing that the positions tell. `code` never changes; scripts may match on it."""

    code: str
    severity: Severity
    cause: str
    next_step: str


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
        return _parsed(self.slot.restart_lsn) if self.slot else None

    @property
    def confirmed(self) -> int | None:
        """The position up to which the consumer has confirmed."""
        return _parsed(self.slot.confirmed_flush_lsn) if self.slot else None


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
    with psycopg.Cursor(conn) as cursor:
        row = cursor.execute(sql.get("read_log_end")).fetchone()
    assert row is not None  # a SELECT without FROM
    return Positions(name, config, offset, slots.read(conn, name), lsn.parse(row[0]))


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


def verdicts(positions: Positions) -> tuple[OffsetFinding, ...]:
    """Say what a start of the connector would meet, worst first; never empty. Pure.

    The rules of a safe start: the slot exists, is not lost and not held by somebody else, and
    restart_lsn <= stored offset <= end of the log. A lost slot or a stored offset beyond the end of
    the log gives no error in Debezium: it waits, RUNNING, and rows are missing.
    """
    found = sorted(_verdicts(positions), key=lambda verdict: -list(Severity).index(verdict.severity))
    return tuple(found) or (_resumes(positions),)


def refuse_unsafe_start(action: str, positions: Positions) -> None:
    """Raise Refused when starting the connector now would fail or skip events."""
    worst = verdicts(positions)[0]
    if worst.severity is Severity.CRITICAL:
        raise Refused(f"{action} refused: {worst.cause}", remedy=f"{worst.next_step}; --force goes ahead")


def _resumes(positions: Positions) -> OffsetFinding:
    if positions.offset is None:
        cause = "no offset is stored yet: the connector starts where the slot stands"
    else:
        start = max(positions.offset.resume_at or 0, positions.confirmed or 0)
        cause = f"resumes at {lsn.text(start)}, {positions.log_end - start:,} bytes before the end of the log"
    return OffsetFinding("resumes", Severity.OK, cause, "")


def _verdicts(positions: Positions) -> Iterator[OffsetFinding]:
    if positions.slot is None:
        yield _slot_missing(positions)
        return
    yield from _slot_trouble(positions, positions.slot)
    yield from _offset_trouble(positions)


def _slot_missing(positions: Positions) -> OffsetFinding:
    name = positions.slot_name
    strategy = positions.config.get("offset.mismatch.strategy", "no_validation")
    if positions.offset is None or strategy in _UNCHECKED:
        return OffsetFinding(
            "slot_missing",
            Severity.CRITICAL,
            f"slot {name} does not exist: a start creates it at the end of the log, "
            "and rows committed before that are never sent",
            "create the slot before the connector starts (outboxctl apply)",
        )
    return OffsetFinding(
        "slot_missing",
        Severity.CRITICAL,
        f"slot {name} does not exist, but an offset is stored: a start fails with 'no longer available'",
        "run outboxctl recover: it creates the slot anew and publishes the rows that no topic has",
    )


def _slot_trouble(positions: Positions, slot: LiveSlot) -> Iterator[OffsetFinding]:
    name = positions.slot_name
    if slot.lost:
        yield OffsetFinding(
            "slot_lost",
            Severity.CRITICAL,
            f"slot {name} is lost ({slot.invalidation_reason or 'its WAL was removed'}): "
            "a start waits for 30 minutes, RUNNING and without a task, and reads nothing",
            "run outboxctl recover: it creates the slot anew and publishes the rows that no topic has",
        )
    database = positions.config.get("database.dbname")
    if slot.plugin != positions.config.get("plugin.name", "decoderbufs") or slot.database != database:
        yield OffsetFinding(
            "slot_foreign",
            Severity.CRITICAL,
            f"slot {name} is for plug-in {slot.plugin} in database {slot.database}: "
            "the connector does not find it and fails to create its own",
            "give the connector a slot.name of its own",
        )
    process = Process(slot.active_pid, slot.active_user, slot.active_application)
    debezium = (slot.active_application or "").startswith(DEBEZIUM)
    found = whose(process, positions.config)
    if slot.active and (found is Whose.OTHER or (found is Whose.UNKNOWN and not debezium)):
        yield OffsetFinding(
            "slot_taken",
            Severity.CRITICAL,
            f"slot {name} is held by {process}",
            f"find out who runs it ({process.look}), and stop it there",
        )


def _offset_trouble(positions: Positions) -> Iterator[OffsetFinding]:
    offset = positions.offset
    if offset is None:
        mode = positions.config.get("snapshot.mode", "initial")
        if mode in _SNAPSHOTS_WITHOUT_OFFSET:
            yield OffsetFinding(
                "snapshot_ahead",
                Severity.WARNING,
                f"no offset is stored and snapshot.mode is {mode}: a start sends every row of the table",
                "set snapshot.mode=no_data to start where the slot stands",
            )
        return
    stored = offset.resume_at
    if stored is None:
        yield OffsetFinding(
            "offset_unreadable",
            Severity.CRITICAL,
            "the stored offset holds no position that is a number: the task fails at its start",
            "set it: outboxctl connectors offsets set X/Y",
        )
    else:
        yield from _order(positions, stored)


def _order(positions: Positions, stored: int) -> Iterator[OffsetFinding]:
    if positions.restart is not None and positions.restart > stored:
        yield OffsetFinding(
            "slot_newer",
            Severity.CRITICAL,
            f"the slot keeps WAL from {lsn.text(positions.restart)} on, the stored offset is older: "
            "it was created anew, and a start fails with 'no longer available'",
            "run outboxctl recover: it resets the offset and publishes the rows that no topic has",
        )
    elif stored > positions.log_end:
        yield OffsetFinding(
            "offset_in_future",
            Severity.CRITICAL,
            f"the stored offset lies {stored - positions.log_end:,} bytes beyond the end of the log: the "
            "server was restored or failed over, and rows are skipped in silence until it is reached",
            "run outboxctl recover: it resets the offset and compares the events in Kafka with the table",
        )
    elif positions.confirmed is not None and stored < positions.confirmed:
        yield OffsetFinding(
            "offset_behind_slot",
            Severity.WARNING,
            f"the stored offset is older than confirmed_flush {lsn.text(positions.confirmed)}: "
            "the server resumes there",
            "nothing to do unless the offset was set by hand or restored from a backup",
        )


def _parsed(text: str | None) -> int | None:
    return lsn.parse(text) if text is not None else None
