"""The slot itself, what feeds it, and the offset that Connect has stored for it."""

from __future__ import annotations

from outbox_connectors.findings import Severity
from outbox_pipeline.servers import lsn
from outbox_pipeline.servers.positions import PositionCode
from outbox_pipeline.servers.shell_commands import psql
from outbox_pipeline.watch.facts import Facts
from outbox_pipeline.watch.forecast import checkpoints
from outbox_pipeline.watch.formatting import duration, size
from outbox_pipeline.watch.rules import identifier, quoted, table
from outbox_pipeline.watch.rules.positions import confirmed_before, position, seen_before
from outbox_pipeline.watch.sample import Slot
from outbox_pipeline.watch.verdict import VerdictKey, WatchFinding

_REASONS = {
    "wal_removed": "it kept more WAL than max_slot_wal_keep_size allows, and a checkpoint removed that WAL",
    "rows_removed": "a standby's recovery removed catalog rows it needed",
    "wal_level_insufficient": "wal_level on the primary was lowered below logical",
    "idle_timeout": "nobody used it for longer than idle_replication_slot_timeout",
}


def slot_lost(facts: Facts) -> WatchFinding | None:
    """The slot can never be read again: what was not delivered must come from the table."""
    slot, found = facts.slot, position(facts, PositionCode.SLOT_LOST)
    if slot is None or found is None:
        return None
    reason = slot.invalidation_reason or ("rows_removed" if _conflicts(slot) else "wal_removed")
    since = f" Delivered up to {lsn.text(slot.confirmed_lsn)}." if slot.confirmed_lsn is not None else ""
    return WatchFinding(
        VerdictKey(found.code),
        found.severity,
        f"slot {slot.name} is lost ({reason}): {_REASONS.get(reason, 'the server invalidated it')}; "
        f"every event after its position is missing on Kafka until it is sent again from the table.{since}",
        found.next_step,
        {"reason": reason, "wal_status": slot.wal_status, "confirmed_flush_lsn": slot.confirmed_lsn},
    )


def _conflicts(slot: Slot) -> bool:
    # On 16 `conflicting` is true for wal_removed too, but that case alone clears restart_lsn.
    return bool(slot.conflicting) and slot.restart_lsn is not None


def slot_missing(facts: Facts) -> WatchFinding | None:
    """The slot is not there: nothing keeps the WAL, and a connector that starts makes one at 'now'."""
    postgres, found = facts.postgres, position(facts, PositionCode.SLOT_MISSING)
    if postgres is None or found is None:
        return None
    return WatchFinding(
        VerdictKey(found.code),
        found.severity,
        f"slot {facts.names.slot} does not exist on this server"
        + (", and it did a moment ago" if seen_before(facts) else "")
        + "; events committed since it went are kept by nothing but the table",
        found.next_step,
        {
            "slots": [slot.name for slot in postgres.slots],
            "stored_offset": facts.connect.offset_lsn if facts.connect else None,
        },
    )


def slot_foreign(facts: Facts) -> WatchFinding | None:
    """A slot of this name is there, but for another plug-in or database: the connector cannot use it."""
    slot, found = facts.slot, position(facts, PositionCode.SLOT_FOREIGN)
    if slot is None or found is None:
        return None
    evidence = {"kind": slot.kind, "plugin": slot.plugin, "database": slot.database}
    return WatchFinding(VerdictKey(found.code), found.severity, found.cause, found.next_step, evidence)


def rescue_window(facts: Facts) -> WatchFinding | None:
    """The cap is passed but no checkpoint has ended since: the slot can still be saved."""
    slot, postgres = facts.slot, facts.postgres
    if slot is None or postgres is None or slot.lost or slot.wal_status != "unreserved":
        return None
    if postgres.server.in_recovery:
        return None
    settings = postgres.server.settings
    ahead = checkpoints(postgres.server, facts.wal_rate, None)
    needed = (facts.retained or 0) * 2
    cap = quoted(f"{max(1, -(-needed // (1024 * 1024)))}MB")
    raise_cap = psql(f"ALTER SYSTEM SET max_slot_wal_keep_size = {cap}")
    return WatchFinding(
        VerdictKey.RESCUE_WINDOW,
        Severity.CRITICAL,
        f"slot {slot.name} keeps {size(facts.retained or 0)} of WAL, more than max_slot_wal_keep_size "
        f"({size(settings.slot_cap_bytes or 0)}); it is lost at the end of the next checkpoint, "
        f"due in {duration(ahead.first_start)} at the latest, and can be saved until then",
        f"{raise_cap} -c 'SELECT pg_reload_conf()'  # look at the free disk space first, and do not run "
        f"CHECKPOINT",
        {
            "safe_wal_size": slot.safe_wal_bytes,
            "retained": facts.retained,
            "next_checkpoint": ahead.first_start,
        },
    )


def publication_missing(facts: Facts) -> WatchFinding | None:
    """No publication: PostgreSQL 18 streams on without an error and without the rows."""
    postgres, names = facts.postgres, facts.names
    if postgres is None or postgres.publication is not None or postgres.server.in_recovery:
        return None
    effect = (
        "PostgreSQL 18 goes on without an error and the connector never sees the rows written now"
        if postgres.server.major >= 18
        else "the connector cannot read the slot and tries again for ever"
    )
    return WatchFinding(
        VerdictKey.PUBLICATION_MISSING,
        Severity.CRITICAL,
        f"publication {names.publication} does not exist in database {names.database}: {effect}",
        "outboxctl apply",
        {"server_version": postgres.server.version},
    )


def table_missing(facts: Facts) -> WatchFinding | None:
    """No outbox table."""
    postgres, names = facts.postgres, facts.names
    if postgres is None or postgres.outbox is not None:
        return None
    return WatchFinding(
        VerdictKey.TABLE_MISSING,
        Severity.CRITICAL,
        f"table {names.table} does not exist in database {names.database}, or was renamed",
        "outboxctl apply",
    )


def table_not_published(facts: Facts) -> WatchFinding | None:
    """The publication is there but (some of) the outbox's inserts are not in it: lost without an error."""
    postgres, names = facts.postgres, facts.names
    if postgres is None or postgres.publication is None or postgres.outbox is None:
        return None
    publication, name = postgres.publication, identifier(names.publication)
    if not publication.covers_table:
        problem = f"table {names.table} is not in publication {names.publication}"
        mend = f"ALTER PUBLICATION {name} ADD TABLE {table(names.table)}"
    elif not publication.publishes_insert:
        problem = f"publication {names.publication} does not publish inserts"
        mend = f"ALTER PUBLICATION {name} SET (publish = 'insert')"
    elif publication.row_filter:
        problem = f"publication {names.publication} lets only some rows through (it has a WHERE)"
        mend = f"ALTER PUBLICATION {name} SET TABLE {table(names.table)}"
    else:
        return None
    return WatchFinding(
        VerdictKey.TABLE_NOT_PUBLISHED,
        Severity.CRITICAL,
        f"{problem}; rows written meanwhile are skipped without any error and never reach Kafka",
        psql(mend, names.database),
    )


def offset_ahead_of_slot(facts: Facts) -> WatchFinding | None:
    """Connect's offset lies beyond the end of the WAL: the server is older than the offset.

    So after a restore or a failover to a standby that was behind (Debezium then filters what is
    written below the stored position, silently).
    """
    postgres, connect = facts.postgres, facts.connect
    found = position(facts, PositionCode.OFFSET_AHEAD_OF_SLOT)
    if postgres is None or connect is None or connect.offset_lsn is None or found is None:
        return None
    end = postgres.server.wal_position
    return WatchFinding(
        VerdictKey(found.code),
        found.severity,
        f"connector {facts.names.connector} has stored position {lsn.text(connect.offset_lsn)}, but the "
        f"server "
        f"is only at {lsn.text(end)}: it was restored, or failed over to a standby that was behind; "
        "events written up to the stored position will be skipped without an error",
        found.next_step,
        {"stored_offset": connect.offset_lsn, "wal_position": end},
    )


def offset_behind_slot(facts: Facts) -> WatchFinding | None:
    """Connect's offset lies before what the slot still has: the slot moved on without Connect."""
    slot, connect = facts.slot, facts.connect
    found = position(facts, PositionCode.OFFSET_BEHIND_SLOT)
    if slot is None or connect is None or connect.offset_lsn is None or found is None:
        return None
    before = confirmed_before(facts)
    confirmed = before if before is not None else slot.confirmed_lsn or connect.offset_lsn
    gone = found.severity is Severity.CRITICAL
    return WatchFinding(
        VerdictKey(found.code),
        found.severity,
        f"connector {facts.names.connector} has stored position {lsn.text(connect.offset_lsn)}, but slot "
        f"{slot.name} starts at {lsn.text(confirmed)}: the {size(confirmed - connect.offset_lsn)} between "
        + (
            "are gone from the slot (it was made anew, or another consumer read it), and the connector "
            "will not start"
            if gone
            else "will be skipped; harmless if an older offset was restored, a gap if not"
        ),
        found.next_step,
        {
            "stored_offset": connect.offset_lsn,
            "confirmed_flush_lsn": confirmed,
            "restart_lsn": slot.restart_lsn,
        },
    )


def offset_unreadable(facts: Facts) -> WatchFinding | None:
    """Connect's offset holds no position, so that the task fails at its start."""
    found = position(facts, PositionCode.OFFSET_UNREADABLE)
    if found is None:
        return None
    cause = f"connector {facts.names.connector}: {found.cause}"
    return WatchFinding(VerdictKey(found.code), found.severity, cause, found.next_step)
