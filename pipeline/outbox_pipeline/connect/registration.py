"""Give Connect a connector's configuration: checked first, shown as a difference, watched afterwards."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from outbox_connectors import checks
from outbox_connectors.checks import CapturedTable
from outbox_connectors.definition import Definition
from outbox_connectors.findings import Finding, Severity
from outbox_connectors.masking import HIDDEN
from outbox_connectors.profile import Version
from outbox_connectors.wire_form import deviations
from outbox_pipeline.connect.client import DEBEZIUM_POSTGRES, ConnectClient, ConnectorStatus, FieldError
from outbox_pipeline.connect.configuration import Difference, differences, literal_secrets
from outbox_pipeline.errors import Failed

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Registration:
    """What registering would do. `errors` are Connect's own; with any of them nothing is sent."""

    name: str
    exists: bool
    changes: tuple[Difference, ...]
    errors: tuple[FieldError, ...]
    literal_secrets: tuple[str, ...]
    findings: tuple[Finding, ...]  # our own: the traps that Connect's validation does not see

    @property
    def action(self) -> str:
        """`create`, `update`, or `none` when Connect has this very configuration."""
        if not self.exists:
            return "create"
        return "update" if self.changes else "none"


def require_debezium(client: ConnectClient) -> Version:
    """Tell which version of Debezium's PostgreSQL connector the worker has; raises Failed for none."""
    version = client.debezium_version()
    if version is None:
        raise Failed(
            "Debezium's PostgreSQL connector is not installed",
            where=client.where,
            remedy="put it into a folder of its own below the worker's plugin.path and restart the worker",
        )
    return version


def prepare(
    client: ConnectClient,
    name: str,
    config: Mapping[str, str],
    *,
    postgres_major: int | None = None,
    table: CapturedTable | None = None,
) -> Registration:
    """Let Connect validate a configuration and compare it with the one it has. Changes nothing.

    `table` is the live table that it captures, None where that was not seen.

    Raises Failed where the configuration wants Debezium's PostgreSQL connector and the worker has none.
    """
    findings: Sequence[Finding] = ()
    if config.get("connector.class") == DEBEZIUM_POSTGRES:
        debezium = require_debezium(client)
        findings = checks.check(config, debezium=debezium, postgres_major=postgres_major, table=table)
    have = client.config(name)
    return Registration(
        name=name,
        exists=have is not None,
        changes=differences(have or {}, config),
        errors=_without_secrets(client.validate({**config, "name": name}), config),
        literal_secrets=literal_secrets(config),
        findings=tuple(findings),
    )


def _without_secrets(errors: Sequence[FieldError], config: Mapping[str, str]) -> tuple[FieldError, ...]:
    """Blank literal secrets that a plug-in repeats in its complaint."""
    secrets = [config[field] for field in literal_secrets(config)]
    return tuple(FieldError(error.field, _blanked(error.message, secrets)) for error in errors)


def _blanked(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


# What a connector reads, and under which name: another value means another source of records.
_SOURCE: Final = (
    "connector.class",
    "database.dbname",
    "slot.name",
    "publication.name",
    "topic.prefix",
    "table.include.list",
)


def works(status: ConnectorStatus) -> bool:
    """Tell whether a connector and all of its tasks run."""
    states = {status.state, *(task.state for task in status.tasks)}
    return bool(status.tasks) and states == {"RUNNING"}


def foreign(
    live: Mapping[str, str], wanted: Mapping[str, str], definition: Definition | None
) -> tuple[str, ...]:
    """Name the properties that show that a connector was not made from this configuration. Pure.

    These are what it reads from and, where there is a definition, what makes its records other ones than the
    contract's; everything else may have drifted.
    """
    form = [one.key for one in deviations(live, definition)] if definition is not None else []
    return tuple(dict.fromkeys(key for key in (*_SOURCE, *form) if live.get(key) != wanted.get(key)))


def reasons_to_keep(
    live: Mapping[str, str],
    wanted: Mapping[str, str],
    findings: Sequence[Finding],
    definition: Definition | None,
    blocked: Sequence[str],
) -> tuple[str, ...]:
    """Say why a connector that works should not get this configuration. Pure; empty where nothing speaks so.

    `findings` are those of the new configuration, `blocked` what the plan says of the objects it reads.
    """
    found = [f"plan: {why}" for why in blocked]
    found += [f"{finding.cause}" for finding in findings if finding.severity is Severity.CRITICAL]
    others = foreign(live, wanted, definition)
    if others:
        found.append(f"it was not made from this configuration ({', '.join(others[:3])})")
    return tuple(found)


def keep_copy(folder: Path, name: str, config: Mapping[str, str], now: datetime) -> Path:
    """Write a configuration to a file of its own that only its owner may read, and return the file.

    Secrets that stand literally in Connect's configuration stand in the file too: without them it could
    not be put back. Raises Failed where the file cannot be written.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    path = folder / f"{plain}.{now:%Y%m%dT%H%M%S.%fZ}.json"
    document = {"name": name, "config": {key: value for key, value in config.items() if key != "name"}}
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise Failed(
            f"the present configuration cannot be kept: {error.strerror}",
            where=str(path),
            remedy="name a folder with --backup-dir; nothing was changed",
        ) from error
    return path


def settle(
    client: ConnectClient,
    name: str,
    seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> ConnectorStatus:
    """Watch a connector for `seconds`, or until it or its task FAILED; return what was seen last.

    Most mistakes that Connect's validation overlooks fail the task within seconds (measured: 0.3 to
    12 s on Debezium 3.7.0.Final), so RUNNING right after a change says little.
    """
    deadline = clock() + seconds
    while True:
        status = client.status(name)
        if status is None:
            raise Failed(f"connector {name} disappeared", where=client.where)
        if status.failed or status.state in ("STOPPED", "PAUSED") or clock() >= deadline:
            return status
        sleep(POLL_SECONDS)


def explain(status: ConnectorStatus) -> str:
    """Say in one line what a state means where its name does not; empty when all is as it should be."""
    if status.failed:
        return status.trace_line or "failed without a trace; look at the worker's log"
    if status.state == "STOPPED":
        return "no task, the slot is free and keeps WAL"
    if status.state == "PAUSED":
        return "delivers nothing; its replication connection stays open, and the slot keeps WAL"
    if not status.tasks:
        return (
            "no task: it is still starting, or Debezium waits (30 minutes) for a slot that is lost; "
            "compare with: outboxctl connectors offsets show"
        )
    waiting = [task for task in status.tasks if task.state != "RUNNING"]
    return (
        f"task {waiting[0].id} is {waiting[0].state}: the workers rebalance, or none is free"
        if waiting
        else ""
    )
