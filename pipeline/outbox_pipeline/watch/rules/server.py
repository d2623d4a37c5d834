"""Rules about the servers: reachable, WAL bounded, able to vacuum, ready to fail over."""

from __future__ import annotations

from outbox_connectors.findings import Severity
from outbox_pipeline.servers.shell_commands import psql
from outbox_pipeline.watch.facts import Facts
from outbox_pipeline.watch.formatting import count, duration, number, size
from outbox_pipeline.watch.rules import (
    identifier,
    look_at,
    quoted,
    since,
    table,
    time_left,
    urgency,
    waiting,
)
from outbox_pipeline.watch.sample import Holder, PostgresSample, Slot
from outbox_pipeline.watch.verdict import Unseen, VerdictKey, WatchFinding

ACKNOWLEDGED_SECONDS = 5.0  # what Kafka took before it went may be confirmed this much later


def postgres_unreachable(facts: Facts) -> WatchFinding | None:
    """PostgreSQL was not seen, so nothing is known of the slot."""
    unseen = facts.sample.postgres
    if not isinstance(unseen, Unseen):
        return None
    seen = [p.at for p in facts.sample_past if p.wal is not None]
    blind = [p.at for p in facts.sample_past if not seen or p.at > seen[-1]]
    gone = facts.sample.at - blind[0] if blind else 0.0
    return WatchFinding(
        VerdictKey.POSTGRES_UNREACHABLE,
        Severity.CRITICAL if gone >= facts.thresholds.stuck else Severity.WARNING,
        f"{unseen.reason}{since(gone)}; nothing is known of the slot",
        unseen.remedy,
    )


def kafka_unreachable(facts: Facts) -> WatchFinding | None:
    """Kafka was not seen: delivery cannot be checked."""
    unseen = facts.unreachable("kafka")
    if unseen is None:
        return None
    gone = facts.unseen_seconds("kafka")
    if unseen.refused:
        effect = "whether events arrive and are read stays unseen"
    elif still_delivers(facts):
        effect = "but the connector still delivers, so it is out of reach only from here"
    elif isinstance(facts.sample.connect, Unseen):
        effect = "Kafka Connect keeps its state there and cannot answer or deliver without it"
    else:
        effect = "nothing can be delivered"
    return WatchFinding(
        VerdictKey.KAFKA_UNREACHABLE,
        urgency(facts, Severity.WARNING, gone),
        f"{unseen.reason}{since(gone)}; {effect}{waiting(facts)}{time_left(facts)}",
        unseen.remedy or "start the brokers; the connector goes on by itself",
        {"seconds": gone},
    )


def still_delivers(facts: Facts) -> bool:
    """Whether the position moved well after Kafka was first out of reach for us."""
    return facts.confirmed_still + ACKNOWLEDGED_SECONDS < facts.unseen_seconds("kafka")


def wal_unbounded(facts: Facts) -> WatchFinding | None:
    """max_slot_wal_keep_size is not set: a slot that stands still fills the disk and stops the database."""
    postgres, slot = facts.postgres, facts.slot
    if postgres is None or slot is None or postgres.server.in_recovery or slot.lost:
        return None
    if postgres.server.settings.slot_cap_bytes is not None:
        return None
    return WatchFinding(
        VerdictKey.WAL_UNBOUNDED,
        Severity.WARNING,
        "max_slot_wal_keep_size is -1: a slot that stands still keeps WAL until the disk is full and "
        "PostgreSQL "
        f"stops; slot {slot.name} keeps {size(facts.retained or 0)} now{time_left(facts)}",
        f"{psql('ALTER SYSTEM SET max_slot_wal_keep_size = ' + quoted('10GB'))} -c 'SELECT pg_reload_conf()'"
        "  # at most half of the free disk space, more than the longest outage writes",
        {"retained": facts.retained, "wal_status": slot.wal_status},
    )


def unexplained_wal(facts: Facts) -> WatchFinding | None:
    """pg_wal is larger than slots and settings explain.

    So on a server that is idle but for non-transactional messages (no slot shows it, measured on
    14, 15 and 18), or where archiving fails.
    """
    postgres = facts.postgres
    if postgres is None or postgres.server.in_recovery:
        return None
    server = postgres.server
    found = server.wal_dir_bytes
    excess = found - explained_bytes(postgres) if found is not None else 0
    if found is None or excess < facts.thresholds.unexplained_bytes:
        return None
    failing = server.archive_failing
    return WatchFinding(
        VerdictKey.UNEXPLAINED_WAL,
        Severity.WARNING,
        f"pg_wal holds {size(found)}, {size(excess)} more than slots, wal_keep_size and max_wal_size "
        + (
            "explain: archive_command fails"
            if failing
            else "explain: a base backup, slow archiving, or a server "
            "so idle that only a transaction frees its WAL"
        ),
        psql("SELECT * FROM pg_stat_archiver")
        if failing
        else psql("SELECT pg_current_xact_id()") + " -c CHECKPOINT",
        {"wal_dir_bytes": found, "excess": excess, "archive_failing": failing},
    )


def explained_bytes(postgres: PostgresSample) -> int:
    """Return how large pg_wal may be: what must be kept, or what the settings let PostgreSQL recycle."""
    server = postgres.server
    starts = [s.restart_lsn for s in postgres.slots if s.restart_lsn is not None and not s.lost]
    retained = max((server.wal_position - start for start in starts), default=0)
    since_redo = server.wal_position - server.redo_position
    settings = server.settings
    kept = max(retained, settings.wal_keep_bytes, since_redo)
    return max(kept + settings.max_wal_bytes, settings.max_wal_bytes) + 2 * settings.segment_bytes


def outbox_not_vacuumable(facts: Facts) -> WatchFinding | None:
    """Dead rows pile up in the outbox because something on the server may still want to see them."""
    postgres, limits = facts.postgres, facts.thresholds
    if postgres is None or postgres.outbox is None or postgres.server.in_recovery:
        return None
    outbox = postgres.outbox
    if outbox.dead < max(limits.dead_rows, limits.dead_ratio * outbox.live):
        return None
    holder = _vacuum_holder(facts, postgres)
    if holder is None:
        return None
    title, step, evidence = holder
    recent = outbox.autovacuum_seconds is not None and outbox.autovacuum_seconds < limits.vacuum_recent
    ran = f"; autovacuum ran {duration(outbox.autovacuum_seconds or 0)} ago without effect" if recent else ""
    return WatchFinding(
        VerdictKey.OUTBOX_NOT_VACUUMABLE,
        Severity.WARNING,
        f"{table(facts.names.table)} has {count(outbox.dead, 'dead row')} beside "
        f"{count(outbox.live, 'live one')} "
        f"({size(outbox.bytes)}), and {title} keeps them from being removed{ran}",
        step,
        {"dead": outbox.dead, "live": outbox.live, "bytes": outbox.bytes, **evidence},
    )


def _vacuum_holder(facts: Facts, postgres: PostgresSample) -> tuple[str, str, dict[str, object]] | None:
    """Find what holds the horizon of the outbox's database; a logical slot's catalog_xmin never does.

    A session of another database does not hold it (measured), a prepared transaction of the same one
    and a physical slot's xmin (hot_standby_feedback) do.
    """
    found: list[tuple[int, Holder | Slot]] = []
    for holder in postgres.holders:
        age = max(holder.xid_age or 0, holder.xmin_age or 0)
        old = holder.seconds is None or holder.seconds >= facts.thresholds.vacuum_holder
        if holder.database == facts.names.database and old:
            found.append((age, holder))
    found += [(s.xmin_age, s) for s in postgres.slots if s.kind == "physical" and s.xmin_age and not s.lost]
    if not found:
        return None
    age, oldest = max(found, key=lambda pair: pair[0])
    if isinstance(oldest, Slot):
        title = f"a query on the standby behind slot {oldest.name} (hot_standby_feedback)"
        step = "end the long query on that standby, or drop the slot if the standby is gone"
        return title, step, {"slot": oldest.name, "xmin_age": age}
    title = oldest.title + (f", open for {duration(oldest.seconds)}," if oldest.seconds is not None else "")
    evidence: dict[str, object] = {"gid": oldest.gid} if oldest.gid else {"pid": oldest.pid, "xmin_age": age}
    return title, look_at(oldest), evidence


def catalog_xmin_old(facts: Facts) -> WatchFinding | None:
    """The slot keeps old catalog rows: bloat, autovacuum in vain, wrap-around in the end."""
    slot, limits = facts.slot, facts.thresholds
    if slot is None or slot.lost or slot.catalog_xmin_age is None:
        return None
    age = slot.catalog_xmin_age
    if age < limits.catalog_xmin_warn:
        return None
    return WatchFinding(
        VerdictKey.CATALOG_XMIN_OLD,
        Severity.CRITICAL if age >= limits.catalog_xmin_critical else Severity.WARNING,
        f"slot {slot.name} holds the catalogs at a transaction {number(age / 1e6)} million transactions old: "
        "they bloat, plans go wrong, and in the end PostgreSQL stops to avoid wrap-around",
        "outboxctl connectors status  # consuming the slot frees it; so does dropping it",
        {"catalog_xmin_age": age},
    )


def slots_nearly_full(facts: Facts) -> WatchFinding | None:
    """Nearly all of max_replication_slots are in use: the next connector or standby cannot make one."""
    postgres = facts.postgres
    if postgres is None:
        return None
    used, limit = len(postgres.slots), postgres.server.settings.max_replication_slots
    # With few slots in all the share says little; having only one free always counts.
    if limit == 0 or (used / limit <= facts.thresholds.slots_share and used < limit - 1) or used < 2:
        return None
    idle = [slot.name for slot in postgres.slots if not slot.active and slot.name != facts.names.slot]
    example = f"; unused: {', '.join(sorted(idle)[:5])}" if idle else ""
    return WatchFinding(
        VerdictKey.SLOTS_NEARLY_FULL,
        Severity.WARNING,
        f"{used} of {limit} replication slots are in use (max_replication_slots){example}",
        "outboxctl slots  # drop an unused one only after its owner says that it is not needed any more",
        {"used": used, "max_replication_slots": limit},
    )


def failover_not_ready(facts: Facts) -> WatchFinding | None:
    """After a failover the slot would be missing or unusable (PostgreSQL 17 and later can do better)."""
    postgres, slot = facts.postgres, facts.slot
    if postgres is None:
        return None
    if postgres.server.in_recovery:
        return _standby(facts, slot)
    if postgres.server.major < 17 or slot is None or slot.lost:
        return None
    present = {s.name: s for s in postgres.slots}
    wanted = postgres.server.settings.synchronized_standby_slots
    absent = [name for name in wanted if name not in present or not present[name].active]
    if slot.failover and absent:
        return WatchFinding(
            VerdictKey.FAILOVER_NOT_READY,
            urgency(facts, Severity.WARNING, facts.confirmed_still),
            f"synchronized_standby_slots names {', '.join(absent)}, which no standby uses: every "
            f"failover slot, "
            f"{slot.name} included, waits for it and sends nothing{time_left(facts)}",
            "start the standby, or take it out of synchronized_standby_slots and reload",
            {"waits_for": absent},
        )
    if facts.names.failover and not slot.failover:
        return WatchFinding(
            VerdictKey.FAILOVER_NOT_READY,
            Severity.WARNING,
            f"slot {slot.name} was made without failover, so no standby keeps a copy: after a failover "
            f"it is gone",
            "outboxctl plan",
            {"failover": slot.failover},
        )
    return None


def _standby(facts: Facts, slot: Slot | None) -> WatchFinding | None:
    if slot is not None and not slot.failover and not slot.synced:
        return None  # a slot of the standby's own (PostgreSQL 16)
    if slot is not None and slot.synced and not slot.lost:
        return None
    if slot is None:
        problem = f"this standby has no copy of slot {facts.names.slot}"
    elif slot.lost:
        problem = (
            f"this standby's copy of slot {slot.name} is lost ({slot.invalidation_reason or 'wal_removed'})"
        )
    else:
        problem = f"this standby's slot {slot.name} is not synced: one of that name was in the way"
    step = (
        "set sync_replication_slots, hot_standby_feedback, primary_slot_name, and dbname in primary_conninfo"
    )
    if slot is not None:
        step = (
            psql(f"SELECT pg_drop_replication_slot({quoted(slot.name)}) WHERE pg_is_in_recovery()")
            + "  # on the standby; it is copied again"
        )
    return WatchFinding(
        VerdictKey.FAILOVER_NOT_READY,
        Severity.WARNING,
        f"{problem}; if it is promoted now, the events since the last delivery must come from the table",
        step,
        {"slot": identifier(facts.names.slot), "synced": slot.synced if slot else None},
    )
