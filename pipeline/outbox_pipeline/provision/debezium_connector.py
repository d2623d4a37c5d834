"""The connector: how it stands in Kafka Connect, compared with what the profile renders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_connectors.masking import shown
from outbox_connectors.profile import render
from outbox_pipeline.connect import restart_guard
from outbox_pipeline.connect.client import ConnectClient, ConnectorStatus
from outbox_pipeline.connect.configuration import differences
from outbox_pipeline.connect.registration import foreign, works
from outbox_pipeline.errors import Failed
from outbox_pipeline.servers import postgres
from outbox_pipeline.servers.plan import FieldChange, ObjectPlan, State, blocked

KIND = "connector"
ABSENT = "absent"

HALTED = ("PAUSED", "STOPPED")

# A connector that reads somewhere else: its stored position means nothing there.
_IDENTITY = ("connector.class", "database.dbname", "slot.name")


def plan(
    live: Mapping[str, str] | None,
    status: ConnectorStatus | None,
    wanted: Mapping[str, str],
    name: str,
) -> ObjectPlan:
    """Compare a connector with its wanted configuration, property by property. Pure.

    Secrets are hidden, unless they are references to a ConfigProvider.
    """
    statement = json.dumps({key: shown(key, value) for key, value in wanted.items()}, indent=2)
    if live is None:
        return ObjectPlan(KIND, name, State.MISSING, statement=statement)
    changes = tuple(_changes(live, wanted))
    moved = [change for change in changes if change.field in _IDENTITY]
    if moved:
        return blocked(
            KIND,
            name,
            f"exists for something else: {moved[0].field} is {moved[0].have}, wants {moved[0].want}",
            "choose another connect.connector: that one may deliver somebody's events",
            changes=changes,
        )
    if status is not None and status.state in HALTED:
        return blocked(
            KIND,
            name,
            f"is {status.state}, which somebody asked for",
            f"outboxctl connectors resume {name}",
            changes=(*changes, FieldChange("state", status.state, "RUNNING")),
        )
    if status is not None and status.failed:
        changes = (*changes, FieldChange("state", f"FAILED: {status.trace_line}", "RUNNING"))
    if not changes:
        return ObjectPlan(KIND, name, State.PRESENT)
    return ObjectPlan(KIND, name, State.DIFFERENT, changes=changes, statement=statement)


def halted(planned: ObjectPlan) -> bool:
    """Tell whether a connector is in the way only because somebody has paused or stopped it."""
    return planned.kind == KIND and any(c.field == "state" and c.have in HALTED for c in planned.changes)


def look(
    client: ConnectClient, definition: Definition, postgres_major: int, *, registered_only: bool = False
) -> ObjectPlan:
    """Read the connector and compare it; `registered_only` leaves out whether it runs.

    Raises Unreachable when no worker answers.
    """
    name = definition.connect.connector
    version = client.debezium_version()
    if version is None:
        return blocked(
            KIND,
            name,
            f"{client.where} has no Debezium PostgreSQL connector installed",
            "unpack debezium-connector-postgres into a folder of the worker's plugin.path and restart it",
        )
    wanted = render(definition, debezium=version, postgres_major=postgres_major)
    live = client.config(name)
    status = None if live is None or registered_only else client.status(name)
    planned = plan(live, status, wanted, name)
    if planned.state is State.DIFFERENT and live is not None and status is not None and works(status):
        return _guarded(planned, foreign(live, wanted, definition))
    return planned


def _guarded(planned: ObjectPlan, keys: Sequence[str]) -> ObjectPlan:
    """Leave a connector alone that works and was not made from this definition. Pure."""
    if not keys:
        return planned
    others = f" and {len(keys) - 1} more properties" if len(keys) > 1 else ""
    return replace(
        planned,
        state=State.BLOCKED,
        why=f"works, and was not made from this definition: {keys[0]}{others} would change its "
        "source or its records",
        remedy=f"compare: outboxctl connectors register {planned.name} --dry-run; with --force instead it "
        "replaces the configuration, and keeps the old one in a file",
        guarded=True,
    )


def check(client: ConnectClient, definition: Definition, postgres_major: int) -> None:
    """Raise where `make` would not register the wanted configuration. Changes nothing.

    Raises Failed with Connect's own complaint, and Refused when a restart could lose rows at this moment.
    """
    name, version = definition.connect.connector, client.debezium_version()
    assert version is not None  # `look` was asked first
    wanted = render(definition, debezium=version, postgres_major=postgres_major)
    live = client.config(name)
    status = client.status(name) if live is not None else None
    if live is None or any(_changes(live, wanted)) or (status is not None and status.failed):
        _refuse_invalid(client, wanted)
    if live is not None and status is not None and status.state == "RUNNING" and any(_changes(live, wanted)):
        restart_guard.protect(client, name, "apply", partial(_admin, definition))


def make(client: ConnectClient, definition: Definition, postgres_major: int) -> None:
    """Register the wanted configuration and restart what has FAILED. Does not wait for the task.

    Raises Failed with Connect's own complaint when it refuses the configuration (nothing was changed
    then), and Refused when the restart that a change brings could lose rows at this moment.
    """
    name, version = definition.connect.connector, client.debezium_version()
    assert version is not None  # `look` was asked first
    wanted = render(definition, debezium=version, postgres_major=postgres_major)
    _refuse_invalid(client, wanted)
    live = client.config(name)
    if live is None:
        client.put_config(name, wanted)
        return
    restart_guard.protect(client, name, "apply", partial(_admin, definition))
    if any(_changes(live, wanted)):
        client.put_config(name, wanted)
    status = client.status(name)
    if status is not None and status.failed:
        client.restart(name, only_failed=True)


def _admin(definition: Definition, database: str) -> psycopg.Connection[TupleRow]:
    return postgres.connect(definition.postgres.admin, application_name="outboxctl", dbname=database)


def _changes(live: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[FieldChange, ...]:
    return tuple(
        FieldChange(found.field, _text(found.have), _text(found.want)) for found in differences(live, wanted)
    )


def _text(value: str | None) -> str:
    return ABSENT if value is None else value


def _refuse_invalid(client: ConnectClient, wanted: Mapping[str, str]) -> None:
    complaints = client.validate(wanted)
    if complaints:
        first = complaints[0]
        more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
        raise Failed(
            f"Connect refuses {first.field}: {first.message}{more}",
            where=client.where,
            remedy="mend the definition; nothing was registered",
        )
