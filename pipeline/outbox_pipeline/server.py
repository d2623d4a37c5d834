"""The server's settings: checked, never changed, because most of them need a restart.

What must be right before anything can work is `plan`; what should be right to sleep well is in `doctor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import TupleRow, class_row

from outbox_pipeline import sql as statements
from outbox_pipeline.plan import Change, ObjectPlan, State, blocked
from outbox_pipeline.postgres import server_major
from outbox_pipeline.slots import PLUGIN

KIND = "server"
OLDEST_MAJOR = 14


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


def _wrong(live: LiveServer, slot_exists: bool, slot_active: bool) -> Iterator[tuple[Change, str]]:
    if live.major < OLDEST_MAJOR:
        yield (
            Change("version", str(live.major), f"{OLDEST_MAJOR} or later"),
            "upgrade PostgreSQL: logical messages have no effect on pgoutput before 14",
        )
    if live.in_recovery:
        yield Change("role", "standby", "primary"), "point postgres.admin at the primary"
    wal_level = live.text("wal_level")
    if wal_level != "logical":
        yield (
            Change("wal_level", str(wal_level), "logical"),
            "ALTER SYSTEM SET wal_level = 'logical', then restart PostgreSQL "
            "(RDS: rds.logical_replication = 1; Cloud SQL: cloudsql.logical_decoding = on)",
        )
    libraries = live.text("output_plugin_libraries")
    if libraries is not None and PLUGIN not in [name.strip(' "') for name in libraries.split(",")]:
        yield (
            Change("output_plugin_libraries", libraries or "empty", f"with {PLUGIN}"),
            f"add {PLUGIN} to output_plugin_libraries and reload",
        )
    yield from _room(live, slot_exists, slot_active)


def _room(live: LiveServer, slot_exists: bool, slot_active: bool) -> Iterator[tuple[Change, str]]:
    for setting, used, needed in (
        ("max_replication_slots", live.slots, not slot_exists),
        ("max_wal_senders", live.senders, not slot_active),
    ):
        limit = live.number(setting)
        if needed and limit is not None and used >= limit:
            yield (
                Change(setting, f"{limit}, all in use", f"more than {used}"),
                f"ALTER SYSTEM SET {setting} = {limit + 4} and restart PostgreSQL"
                + (", or drop a slot that nobody needs" if setting == "max_replication_slots" else ""),
            )
