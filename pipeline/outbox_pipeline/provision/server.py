"""The server's settings: checked, never changed, because most of them need a restart.

What must be right before anything can work is `plan`; what should be right to sleep well is in `doctor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import TupleRow, class_row

from outbox_connectors.findings import Finding, Severity
from outbox_pipeline import sql as statements
from outbox_pipeline.servers.plan import FieldChange, ObjectPlan, State, blocked
from outbox_pipeline.servers.positions import PLUGIN
from outbox_pipeline.servers.postgres import server_major

KIND = "server"
OLDEST_MAJOR = 14
STATUS_INTERVAL_MS = 10_000  # Debezium's status.update.interval.ms


@dataclass(frozen=True, slots=True)
class LiveServer:
    """The settings that logical decoding rests on. A setting we may not see is absent."""

    in_recovery: bool
    settings: Mapping[str, Mapping[str, Any]]
    slots: int
    senders: int
    active_physical_slots: Sequence[str]
    major: int = 0

    def text(self, setting: str) -> str | None:
        """Return a setting as the server prints it without its unit, None when it is not there."""
        found = self.settings.get(setting)
        return None if found is None else str(found["value"])

    def number(self, setting: str) -> int | None:
        """Return a numeric setting in its unit (`pg_settings.unit`), None when it is not there."""
        text = self.text(setting)
        return None if text is None else int(text)


def read(conn: psycopg.Connection[TupleRow]) -> LiveServer:
    """Read the settings. One query."""
    with conn.cursor(row_factory=class_row(LiveServer)) as cursor:
        found = cursor.execute(statements.get("read_server")).fetchone()
    assert found is not None
    return replace(found, major=server_major(conn))


def plan(live: LiveServer, *, slot_exists: bool, slot_active: bool) -> ObjectPlan:
    """Compare the settings with what logical decoding needs. Pure."""
    name = f"PostgreSQL {live.major}"
    wrong = list(_wrong(live, slot_exists, slot_active))
    if not wrong:
        return ObjectPlan(KIND, name, State.PRESENT)
    changes = [change for change, _ in wrong]
    first = changes[0]
    return blocked(
        KIND,
        name,
        "; ".join(f"{change.field} is {change.have}, wants {change.want}" for change in changes)
        if len(changes) > 1
        else f"{first.field} is {first.have}, wants {first.want}",
        "; ".join(remedy for _, remedy in wrong),
        changes=changes,
    )


def _wrong(live: LiveServer, slot_exists: bool, slot_active: bool) -> Iterator[tuple[FieldChange, str]]:
    if live.major < OLDEST_MAJOR:
        yield (
            FieldChange("version", str(live.major), f"{OLDEST_MAJOR} or later"),
            "upgrade PostgreSQL: logical messages have no effect on pgoutput before 14",
        )
    if live.in_recovery:
        yield FieldChange("role", "standby", "primary"), "point postgres.admin at the primary"
    wal_level = live.text("wal_level")
    if wal_level != "logical":
        yield (
            FieldChange("wal_level", str(wal_level), "logical"),
            "ALTER SYSTEM SET wal_level = 'logical', then restart PostgreSQL "
            "(RDS: rds.logical_replication = 1; Cloud SQL: cloudsql.logical_decoding = on)",
        )
    libraries = live.text("output_plugin_libraries")
    if libraries is not None and PLUGIN not in [name.strip(' "') for name in libraries.split(",")]:
        yield (
            FieldChange("output_plugin_libraries", libraries or "empty", f"with {PLUGIN}"),
            f"add {PLUGIN} to output_plugin_libraries and reload",
        )
    yield from _room(live, slot_exists, slot_active)


def findings(live: LiveServer) -> Iterator[Finding]:
    """Find what works today and hurts one night. Pure."""
    if live.number("max_slot_wal_keep_size") == -1:
        yield _warning(
            "wal-unbounded",
            "max_slot_wal_keep_size is unlimited: a connector that stands still fills the disk and stops "
            "the server",
            "ALTER SYSTEM SET max_slot_wal_keep_size to what the disk can spare, and reload",
        )
    timeout = live.number("wal_sender_timeout")
    if timeout == 0:
        yield _warning(
            "wal-sender-timeout",
            "wal_sender_timeout is off: after a broken connection the slot stays in use by a dead session",
            "ALTER SYSTEM SET wal_sender_timeout = '60s', and reload",
        )
    elif timeout is not None and timeout < 2 * STATUS_INTERVAL_MS:
        yield _warning(
            "wal-sender-timeout",
            f"wal_sender_timeout is {timeout} ms, and the connector reports every {STATUS_INTERVAL_MS} ms",
            "ALTER SYSTEM SET wal_sender_timeout = '60s', and reload",
        )
    if live.number("idle_in_transaction_session_timeout") == 0:
        yield _warning(
            "idle-transactions",
            "idle_in_transaction_session_timeout is off: a forgotten transaction keeps WAL for ever and lets "
            "no slot be created",
            "ALTER SYSTEM SET idle_in_transaction_session_timeout = '10min', and reload",
        )
    if live.number("idle_replication_slot_timeout"):
        yield _warning(
            "idle-slot-timeout",
            "idle_replication_slot_timeout is on: a connector that is down for longer loses its slot",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0, and reload",
        )
    yield from _standbys(live)
    yield from _spare_room(live)


def _standbys(live: LiveServer) -> Iterator[Finding]:
    named = [name.strip(' "') for name in (live.text("synchronized_standby_slots") or "").split(",")]
    missing = [name for name in named if name and name not in live.active_physical_slots]
    if missing:
        yield Finding(
            "standby-slots",
            Severity.CRITICAL,
            f"synchronized_standby_slots names {', '.join(missing)}, no active physical slot: failover "
            "slots wait for it for ever, and the connector gets nothing",
            "name the standby's physical slot, start the standby, or empty the setting",
            "PostgreSQL docs, synchronized_standby_slots",
        )


def _spare_room(live: LiveServer) -> Iterator[Finding]:
    for setting, used in (("max_replication_slots", live.slots), ("max_wal_senders", live.senders)):
        limit = live.number(setting)
        if limit is not None and limit - used < 2:
            yield _warning(
                "no-spare-" + ("slots" if "slots" in setting else "senders"),
                f"{used} of {setting} = {limit} are in use: the next one may not start",
                f"ALTER SYSTEM SET {setting} = {limit + 4}, and restart",
            )


def _warning(code: str, cause: str, remedy: str) -> Finding:
    return Finding(code, Severity.WARNING, cause, remedy, "PostgreSQL docs, Replication settings")


def _room(live: LiveServer, slot_exists: bool, slot_active: bool) -> Iterator[tuple[FieldChange, str]]:
    for setting, used, needed in (
        ("max_replication_slots", live.slots, not slot_exists),
        ("max_wal_senders", live.senders, not slot_active),
    ):
        limit = live.number(setting)
        if needed and limit is not None and used >= limit:
            yield (
                FieldChange(setting, f"{limit}, all in use", f"more than {used}"),
                f"ALTER SYSTEM SET {setting} = {limit + 4} and restart PostgreSQL"
                + (", or drop a slot that nobody needs" if setting == "max_replication_slots" else ""),
            )
