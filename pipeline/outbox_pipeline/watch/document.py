"""The answer as a JSON document that others build on: fields may be added, never renamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from outbox_pipeline.servers import lsn
from outbox_pipeline.watch.facts import Facts, retained_bytes, unconfirmed_bytes
from outbox_pipeline.watch.sample import PostgresSample, Slot
from outbox_pipeline.watch.verdict import SecondsLeft, Verdict, WatchFinding


def status(facts: Facts, verdict: Verdict) -> dict[str, Any]:
    """Build the whole document: the verdict first, then the stages in the order an event passes them."""
    return {
        "pipeline": facts.names.pipeline,
        "at": facts.sample.at,
        "verdict": verdict.key.value,
        "severity": verdict.severity.value,
        "cause": verdict.cause,
        "next_step": verdict.next_step,
        "unseen": [asdict(unseen) for unseen in verdict.unseen],
        "findings": [finding(found) for found in verdict.findings],
        "notes": list(verdict.notes),
        "catch_up_seconds": verdict.catch_up_seconds,
        "canary_seconds": facts.sample.canary_seconds,
        "outbox": _outbox(facts),
        "slot": _slot(facts),
        "connector": _connector(facts),
        "topics": _topics(facts),
        "groups": _groups(facts),
        "server": _server(facts),
        "tick": _tick(facts),
        "evidence": dict(verdict.evidence),
    }


def _tick(facts: Facts) -> dict[str, Any]:
    """Write whether ticks are wanted, may be sent (None: not known) and why not."""
    reason = facts.sample.no_tick
    return {
        "wanted": bool(facts.names.ticker),
        "allowed": None if reason is None else not reason,
        "why_not": reason or "",
    }


def finding(found: WatchFinding) -> dict[str, Any]:
    """Write a finding that the verdict outranks."""
    return {
        "key": found.key.value,
        "severity": found.severity.value,
        "cause": found.cause,
        "next_step": found.next_step,
        "evidence": dict(found.evidence),
    }


def left(seconds: SecondsLeft | None) -> dict[str, Any] | None:
    """Write how long is left."""
    if seconds is None:
        return None
    return {
        "earliest": seconds.earliest,
        "expected": seconds.expected,
        "end": seconds.end.value,
        "history_seconds": seconds.history_seconds,
    }


def _outbox(facts: Facts) -> dict[str, Any] | None:
    outbox = facts.postgres.outbox if facts.postgres else None
    if outbox is None:
        return None
    return {
        "table": facts.names.table,
        "inserted_total": outbox.inserted,
        "inserted_per_second": facts.insert_rate,
        "estimated_rows": outbox.estimated_rows,
        "dead_rows": outbox.dead,
        "bytes": outbox.bytes,
        "oldest_event_seconds": outbox.oldest_seconds,
        "published": facts.postgres.publication.covers_table
        if facts.postgres and facts.postgres.publication
        else False,
    }


def _slot(facts: Facts) -> dict[str, Any] | None:
    slot = facts.slot
    if slot is None:
        return None
    return {
        "name": slot.name,
        "active": slot.active,
        "active_pid": slot.active_pid,
        "wal_status": slot.wal_status,
        "invalidation_reason": slot.invalidation_reason,
        "restart_lsn": _position(slot.restart_lsn),
        "confirmed_flush_lsn": _position(slot.confirmed_lsn),
        "retained_bytes": facts.retained,
        "unconfirmed_bytes": facts.unconfirmed,
        "safe_wal_size_bytes": None if facts.retained is None else slot.safe_wal_bytes,
        "flush_lag_seconds": facts.sender.flush_lag if facts.sender else None,
        "confirmed_bytes_per_second": facts.drain_rate,
        "standing_seconds": facts.confirmed_still,
        "seconds_left": left(facts.left),
        "reserve": [left(reserve) for reserve in facts.reserve],
    }


def _position(position: int | None) -> str | None:
    return None if position is None else lsn.text(position)


def _connector(facts: Facts) -> dict[str, Any] | None:
    connect = facts.connect
    if connect is None:
        return None
    return {
        "name": facts.names.connector,
        "state": connect.state,
        "worker": connect.worker,
        "tasks": [asdict(task) for task in connect.tasks],
        "offset_lsn": _position(connect.offset_lsn),
        "offset_type": connect.offset_type,
        "made_by_apply": None if facts.sample.foreign is None else not facts.sample.foreign,
        "why_foreign": facts.sample.foreign or "",
    }


def _topics(facts: Facts) -> list[dict[str, Any]]:
    kafka = facts.kafka
    if kafka is None:
        return []
    names = sorted({topic for topic, _ in kafka.ends})
    found = [
        {
            "name": name,
            "exists": True,
            "partitions": sum(1 for topic, _ in kafka.ends if topic == name),
            "end_offset": sum(end for (topic, _), end in kafka.ends.items() if topic == name),
            "records": sum(
                end - kafka.starts.get((topic, part), 0)
                for (topic, part), end in kafka.ends.items()
                if topic == name
            ),
        }
        for name in names
    ]
    return found + [{"name": name, "exists": False} for name in kafka.missing_topics]


def _groups(facts: Facts) -> list[dict[str, Any]]:
    return [
        {
            "name": found.group.name,
            "state": found.group.state,
            "members": found.group.members,
            "lag": found.lag,
            "lag_seconds": found.lag_seconds,
        }
        for found in facts.groups
    ]


def _server(facts: Facts) -> dict[str, Any] | None:
    if facts.postgres is None:
        return None
    server = facts.postgres.server
    return {
        "version": server.version,
        "in_recovery": server.in_recovery,
        "timeline": server.timeline,
        "system_identifier": server.system_identifier,
        "wal_position": lsn.text(server.wal_position),
        "wal_bytes_per_second": facts.wal_rate,
        "wal_directory_bytes": server.wal_dir_bytes,
        "max_slot_wal_keep_size_bytes": server.settings.slot_cap_bytes,
        "free_disk_bytes": facts.sample.disk_free_bytes,
        "tickers": facts.postgres.tickers,
    }


def slot_row(
    postgres: PostgresSample, slot: Slot, ours: bool, ends: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Write what one slot of the server costs."""
    holder = next((s for s in postgres.senders if s.pid == slot.active_pid), None)
    return {
        "name": slot.name,
        "ours": ours,
        "kind": slot.kind,
        "plugin": slot.plugin,
        "database": slot.database,
        "temporary": slot.temporary,
        "active_pid": slot.active_pid,
        "held_by": (holder.application or holder.user) if holder else None,
        "wal_status": slot.wal_status,
        "invalidation_reason": slot.invalidation_reason,
        "retained_bytes": retained_bytes(postgres, slot),
        "unconfirmed_bytes": unconfirmed_bytes(postgres, slot),
        "xmin_age": None if slot.lost else slot.xmin_age,
        "catalog_xmin_age": None if slot.lost else slot.catalog_xmin_age,
        "inactive_seconds": slot.inactive_seconds,
        "failover": slot.failover,
        "synced": slot.synced,
        "seconds_left": ends,
    }
