"""Judge a replication slot together with the offset that Kafka Connect has stored for it. Pure.

The only rules for this in the project: one code, one severity and one next step for each state. Whoever
looks at slot and offset (`status`, `watch`, `doctor`, `plan`, `connectors offsets show`, the check before a
start, the canary, `recover`) builds a `SlotAndOffset` from what it has read and asks `judge`.

Four positions of one log decide: `restart_lsn` (oldest WAL the slot keeps), `confirmed_flush_lsn`
(everything committed before it is never sent again), the stored offset (where Debezium asks to resume)
and the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from psycopg import sql

from outbox_connectors.findings import Severity
from outbox_pipeline.servers import lsn
from outbox_pipeline.servers.plan import FieldChange
from outbox_pipeline.servers.shell_commands import psql
from outbox_pipeline.servers.slot_holder import DEBEZIUM, Process, Whose

PLUGIN = "pgoutput"
# Stops the connector first: nothing may consume while slot and offset are rebuilt.
RECOVER = "outboxctl recover  # with --dry-run it only says what it would do"
APPLY = "outboxctl apply"
AUDIT = "outboxctl audit  # says whether an event is missing in Kafka"

_PLUGIN_OF_DEBEZIUM = "decoderbufs"  # Debezium's default for plugin.name
_SNAPSHOTS_WITHOUT_OFFSET = frozenset({"initial", "always", "when_needed", "initial_only"})
_UNCHECKED = frozenset({"trust_slot", "trust_greater_lsn"})


class PositionCode(StrEnum):
    """Every state there is. Alerts and scripts match on these words: they never change."""

    SLOT_MISSING = "slot_missing"
    SLOT_FOREIGN = "slot_foreign"
    SLOT_LOST = "slot_lost"
    SLOT_TAKEN = "slot_taken"
    OFFSET_AHEAD_OF_SLOT = "offset_ahead_of_slot"
    OFFSET_BEHIND_SLOT = "offset_behind_slot"
    OFFSET_UNREADABLE = "offset_unreadable"
    SNAPSHOT_AHEAD = "snapshot_ahead"
    RESUMES = "resumes"


# What `outboxctl recover` repairs, where the severity is critical.
RECOVERABLE = frozenset(
    {
        PositionCode.SLOT_MISSING,
        PositionCode.SLOT_LOST,
        PositionCode.OFFSET_AHEAD_OF_SLOT,
        PositionCode.OFFSET_BEHIND_SLOT,
        PositionCode.OFFSET_UNREADABLE,
    }
)


@dataclass(frozen=True, slots=True)
class PositionFinding:
    """One thing that slot and offset tell. `next_step` is a command, or empty where nothing needs doing."""

    code: str
    severity: Severity
    cause: str
    next_step: str


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """The process that holds a slot, and whose it is."""

    process: Process
    whose: Whose = Whose.CONNECTOR
    task_runs: bool = True  # whether a task of the connector is known to run; True where it is not known

    @property
    def debezium(self) -> bool:
        """Whether it calls itself Debezium."""
        return (self.process.application or "").startswith(DEBEZIUM)


@dataclass(frozen=True, slots=True)
class SlotState:
    """What the judgement needs of a slot. Positions are integers, None: the slot has none."""

    kind: str
    plugin: str | None
    database: str | None
    temporary: bool
    lost: bool
    invalidation_reason: str | None
    restart: int | None
    confirmed: int | None
    holder: SlotHolder | None  # None: nobody holds it


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A stored offset. `position` None: it holds no position that is a number."""

    position: int | None


@dataclass(frozen=True, slots=True)
class SlotAndOffset:
    """A slot, the stored offset, the end of the log, and the configuration that decides with them.

    `slot_existed`: the slot is missing now and was seen before, so that rows may have been lost with it.
    `log_end` None: not known, the offset is then not compared with it.
    """

    slot_name: str
    database: str
    slot: SlotState | None
    offset: StoredOffset | None
    log_end: int | None
    plugin: str = PLUGIN
    snapshot_mode: str = "no_data"
    mismatch_strategy: str = "no_validation"
    slot_existed: bool = False


def expected_plugin(config: Mapping[str, str] | None) -> str:
    """Name the plug-in that a connector asks for; ours where its configuration is not known."""
    return PLUGIN if config is None else config.get("plugin.name", _PLUGIN_OF_DEBEZIUM)


def judge(state: SlotAndOffset) -> tuple[PositionFinding, ...]:
    """Say what is the case, and what a start of the connector would meet, worst first; never empty. Pure.

    The rules of a safe start: the slot exists, is ours, is not lost and not held by another process, and
    restart_lsn <= stored offset <= end of the log. A lost slot or a stored offset beyond the end of the
    log gives no error in Debezium: it waits, RUNNING, and rows are missing.
    """
    found = sorted(_findings(state), key=lambda finding: -list(Severity).index(finding.severity))
    return tuple(found) or (_resumes(state),)


def differences(slot: SlotState, plugin: str, database: str) -> tuple[FieldChange, ...]:
    """Say by what a slot cannot be the connector's."""
    if slot.kind != "logical":
        return (FieldChange("type", slot.kind, "logical"),)
    found = []
    if slot.plugin != plugin:
        found.append(FieldChange("plugin", str(slot.plugin), plugin))
    if slot.database != database:
        found.append(FieldChange("database", str(slot.database), database))
    if slot.temporary:
        found.append(FieldChange("temporary", "true", "false"))
    return tuple(found)


def _findings(state: SlotAndOffset) -> Iterator[PositionFinding]:
    slot = state.slot
    if slot is None:
        yield _missing(state)
    elif foreign := differences(slot, state.plugin, state.database):
        yield _foreign(state.slot_name, foreign)
    elif slot.lost:
        yield _lost(state.slot_name, slot)
    else:
        yield from _taken(state.slot_name, slot)
    usable = slot if slot is not None and not slot.lost else None
    yield from _offset(state, usable)


def _missing(state: SlotAndOffset) -> PositionFinding:
    stored = state.offset is not None
    effect = (
        "but an offset is stored: a start fails with 'no longer available'"
        if stored and state.mismatch_strategy not in _UNCHECKED
        else "a start creates it at the end of the log, and rows committed before that are never sent"
    )
    return PositionFinding(
        PositionCode.SLOT_MISSING,
        Severity.CRITICAL,
        f"slot {state.slot_name} does not exist, {effect}",
        RECOVER if stored or state.slot_existed else APPLY,
    )


def _foreign(name: str, found: tuple[FieldChange, ...]) -> PositionFinding:
    words = ", ".join(f"its {change.field} is {change.have}, not {change.want}" for change in found)
    literal = sql.Literal(name).as_string(None)
    return PositionFinding(
        PositionCode.SLOT_FOREIGN,
        Severity.CRITICAL,
        f"slot {name} is not the connector's: {words}; it cannot use this slot and fails to create its own",
        "give the connector another slot name (postgres.slot in the definition); if nobody needs this slot: "
        f"SELECT pg_drop_replication_slot({literal})",
    )


def _lost(name: str, slot: SlotState) -> PositionFinding:
    return PositionFinding(
        PositionCode.SLOT_LOST,
        Severity.CRITICAL,
        f"slot {name} is lost ({slot.invalidation_reason or 'its WAL was removed'}): "
        "a start waits for 30 minutes, RUNNING and without a task, and reads nothing",
        RECOVER,
    )


def _taken(name: str, slot: SlotState) -> Iterator[PositionFinding]:
    holder = slot.holder
    if holder is None or holder.whose is Whose.CONNECTOR:
        return
    unknown = holder.whose is Whose.UNKNOWN
    if unknown and holder.debezium and holder.task_runs:
        return
    look = psql(holder.process.look)
    if unknown and holder.debezium:
        yield PositionFinding(
            PositionCode.SLOT_TAKEN,
            Severity.WARNING,
            f"slot {name} is held by {holder.process}; whether that is the connector cannot be seen",
            f"{look}  # compare it with database.user and the worker of the connector",
        )
        return
    end = psql(f"SELECT pg_terminate_backend({holder.process.pid})")
    yield PositionFinding(
        PositionCode.SLOT_TAKEN,
        Severity.CRITICAL,
        f"slot {name} is held by {holder.process}",
        f"{look}  # find out who runs it, and stop it there" if unknown or holder.debezium else end,
    )


def _offset(state: SlotAndOffset, slot: SlotState | None) -> Iterator[PositionFinding]:
    """Judge the stored offset. `slot`: the slot, where it can be read."""
    if state.offset is None:
        if slot is not None and state.snapshot_mode in _SNAPSHOTS_WITHOUT_OFFSET:
            yield PositionFinding(
                PositionCode.SNAPSHOT_AHEAD,
                Severity.WARNING,
                f"no offset is stored and snapshot.mode is {state.snapshot_mode}: "
                "a start sends every row of the table",
                "set snapshot.mode=no_data to start where the slot stands",
            )
        return
    stored = state.offset.position
    if stored is None:
        if slot is not None:
            yield PositionFinding(
                PositionCode.OFFSET_UNREADABLE,
                Severity.CRITICAL,
                "the stored offset holds no position that is a number: the task fails at its start",
                RECOVER,
            )
        return
    if state.log_end is not None and stored > state.log_end:
        yield _ahead(stored, state.log_end)
    elif slot is not None:
        yield from _behind(stored, slot)


def _ahead(stored: int, log_end: int) -> PositionFinding:
    return PositionFinding(
        PositionCode.OFFSET_AHEAD_OF_SLOT,
        Severity.CRITICAL,
        f"the stored offset lies {stored - log_end:,} bytes beyond the end of the log: the "
        "server was restored or failed over, and rows are skipped in silence until it is reached",
        RECOVER,
    )


def _behind(stored: int, slot: SlotState) -> Iterator[PositionFinding]:
    if slot.restart is not None and slot.restart > stored:
        yield PositionFinding(
            PositionCode.OFFSET_BEHIND_SLOT,
            Severity.CRITICAL,
            f"the slot keeps WAL from {lsn.text(slot.restart)} on, the stored offset is older: "
            "it was created anew, and a start fails with 'no longer available'",
            RECOVER,
        )
    elif slot.confirmed is not None and stored < slot.confirmed:
        yield PositionFinding(
            PositionCode.OFFSET_BEHIND_SLOT,
            Severity.WARNING,
            f"the stored offset is older than confirmed_flush_lsn {lsn.text(slot.confirmed)}: the server "
            "resumes there; harmless if an older offset was set or restored, a gap if not",
            AUDIT,
        )


def _resumes(state: SlotAndOffset) -> PositionFinding:
    if state.offset is None:
        cause = "no offset is stored yet: the connector starts where the slot stands"
    else:
        confirmed = state.slot.confirmed if state.slot else None
        start = max(state.offset.position or 0, confirmed or 0)
        cause = f"resumes at {lsn.text(start)}"
        if state.log_end is not None:
            cause += f", {state.log_end - start:,} bytes before the end of the log"
    return PositionFinding(PositionCode.RESUMES, Severity.OK, cause, "")
