"""The result of an assessment: a key, a severity, a cause and a next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from outbox_connectors.findings import Severity


def rank(severity: Severity) -> int:
    """Order severities: the higher, the more urgent."""
    return list(Severity).index(severity)


class VerdictKey(StrEnum):
    """Every verdict there is. Alerts, dashboards and scripts match on these words: they never change."""

    # the slot itself
    SLOT_LOST = "slot_lost"
    SLOT_MISSING = "slot_missing"
    SLOT_FOREIGN = "slot_foreign"
    RESCUE_WINDOW = "rescue_window"
    # table and publication
    PUBLICATION_MISSING = "publication_missing"
    TABLE_MISSING = "table_missing"
    TABLE_NOT_PUBLISHED = "table_not_published"
    # slot and stored offset
    OFFSET_AHEAD_OF_SLOT = "offset_ahead_of_slot"
    OFFSET_BEHIND_SLOT = "offset_behind_slot"
    OFFSET_UNREADABLE = "offset_unreadable"
    # the consumer of the slot
    SLOT_TAKEN = "slot_taken"
    MESSAGE_TOO_LARGE = "message_too_large"
    TASK_FAILED = "task_failed"
    CONNECTOR_STOPPED = "connector_stopped"
    CONNECTOR_PAUSED = "connector_paused"
    CONSUMER_FROZEN = "consumer_frozen"
    DECODE_LOOP = "decode_loop"
    CONNECT_UNREACHABLE = "connect_unreachable"
    CONSUMER_DOWN = "consumer_down"
    SINK_NOT_ACKING = "sink_not_acking"
    PINNED_BY_TRANSACTION = "pinned_by_transaction"
    HEARTBEAT_MISSING = "heartbeat_missing"
    # the servers
    POSTGRES_UNREACHABLE = "postgres_unreachable"
    KAFKA_UNREACHABLE = "kafka_unreachable"
    FAILOVER_NOT_READY = "failover_not_ready"
    OUTBOX_NOT_VACUUMABLE = "outbox_not_vacuumable"
    CATALOG_XMIN_OLD = "catalog_xmin_old"
    UNEXPLAINED_WAL = "unexplained_wal"
    WAL_UNBOUNDED = "wal_unbounded"
    SLOTS_NEARLY_FULL = "slots_nearly_full"
    # consumer groups
    GROUP_STOPPED = "group_stopped"
    GROUP_LAGGING = "group_lagging"
    # nothing to do
    CATCHING_UP = "catching_up"
    HEALTHY = "healthy"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class WatchFinding:
    """One finding, in words that need no manual.

    `cause` is a sentence with the names and numbers in it; `next_step` is a command that can be
    pasted, or empty where nothing needs doing.
    """

    key: VerdictKey
    severity: Severity
    cause: str
    next_step: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)


class End(StrEnum):
    """The two ways in which retained WAL can end: the slot is invalidated, or the disk is full."""

    INVALIDATION = "invalidation"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class SecondsLeft:
    """How long until an end: a range, and how much history it is computed from.

    `earliest` assumes the busiest hours, `expected` the mean of the day. None stands for "not
    coming": no WAL is written, or the consumer drains faster than WAL grows.
    """

    end: End
    earliest: float | None
    expected: float | None
    history_seconds: float


@dataclass(frozen=True, slots=True)
class Unseen:
    """A source that could not be sampled, and why."""

    source: str
    reason: str
    remedy: str = ""
    refused: bool = False  # it answered, and rejected us or is another service; otherwise it did not answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict: the finding that explains the others, those others, and what could not be seen."""

    key: VerdictKey
    severity: Severity
    cause: str
    next_step: str
    evidence: Mapping[str, object]
    findings: tuple[WatchFinding, ...]  # outranked by the verdict, most important first
    unseen: tuple[Unseen, ...]
    notes: tuple[str, ...]  # breaks in the history (restart, failover, recreated slot), missing rights
    seconds_left: SecondsLeft | None
    catch_up_seconds: float | None
