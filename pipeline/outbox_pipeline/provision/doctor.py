"""Examine a live pipeline for known traps: server, privileges, versions, connector, slot and offsets.

`plan` says what differs from the definition; this says what is dangerous, also where it does not differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors import checks
from outbox_connectors.checks import Finding, Severity
from outbox_connectors.definition import Definition
from outbox_connectors.errors import ExitCode
from outbox_connectors.profile import Version, known_losses, protected_overrides
from outbox_pipeline import provision
from outbox_pipeline.connect import message_gate, offsets, registration
from outbox_pipeline.connect.client import ConnectClient, ConnectorStatus
from outbox_pipeline.errors import OutboxError
from outbox_pipeline.provision import (
    captured,
    debezium_connector,
    message_rights,
    publications,
    server,
)
from outbox_pipeline.servers import slots
from outbox_pipeline.servers.plan import ObjectPlan, State
from outbox_pipeline.servers.positions import PositionCode
from outbox_pipeline.servers.postgres import server_major

LONG_TRANSACTION_SECONDS = 600.0
# Kinds of which any difference can lose rows or stop everything.
_VITAL = frozenset({server.KIND, publications.KIND, slots.KIND, debezium_connector.KIND})
_PRESENT_BUT_WORTH_A_WORD = "outboxctl plan"


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, the worst first, and what could not be looked at."""

    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]

    @property
    def severity(self) -> Severity:
        """Tell how bad the worst finding is."""
        return checks.worst(list(self.findings))

    @property
    def exit_code(self) -> ExitCode:
        """Be 5 for a critical finding, else 6 where something could not be looked at, else 4 or 0."""
        if self.unseen and self.severity is not Severity.CRITICAL:
            return ExitCode.UNREACHABLE
        return self.severity.exit_code

    def document(self) -> dict[str, Any]:
        """Show it as the JSON of `outboxctl doctor --json`."""
        return {
            "severity": self.severity.value,
            "findings": [
                {
                    "code": found.code,
                    "severity": found.severity.value,
                    "cause": found.cause,
                    "remedy": found.remedy,
                    "source": found.source,
                }
                for found in self.findings
            ],
            "unseen": list(self.unseen),
        }


def examine(conn: psycopg.Connection[TupleRow], client: ConnectClient, definition: Definition) -> Report:
    """Look at everything and report. Changes nothing; takes no lock beyond reading catalogs.

    Raises Unreachable only for PostgreSQL; Kafka and Connect that do not answer become `unseen`, after
    one time-out for both.
    """
    plan = provision.look(conn, client, definition)
    found = [finding for planned in plan.objects for finding in _of_plan(planned)]
    found += server.findings(server.read(conn))
    found += checks.retention(definition)
    found += message_rights.findings(message_rights.read(conn, definition))
    found += _of_slot(conn, definition)
    unseen = [f"{planned.kind} {planned.name}: {planned.why}" for planned in plan.objects if planned.unseen]
    connect_answers = not any(
        planned.unseen for planned in plan.objects if planned.kind == debezium_connector.KIND
    )
    found += _of_ticker(conn, client if connect_answers else None, definition)
    if connect_answers:
        try:
            found += _of_connector(conn, client, definition)
        except OutboxError as error:
            unseen.append(str(error))
    unique = dict.fromkeys(_one_step_for_the_slot(found))
    order = list(Severity)
    return Report(tuple(sorted(unique, key=lambda f: -order.index(f.severity))), tuple(unseen))


def _of_plan(planned: ObjectPlan) -> Iterator[Finding]:
    title = f"{planned.kind} {planned.name}"
    for warning in planned.warnings:
        yield Finding(f"{planned.kind}-warning", Severity.WARNING, warning, "", _PRESENT_BUT_WORTH_A_WORD)
    if planned.state is State.PRESENT or planned.unseen:
        return
    fields = ", ".join(f"{change.field} is {change.have}" for change in planned.changes[:3])
    vital = planned.kind in _VITAL or planned.state is State.BLOCKED
    yield Finding(
        f"{planned.kind}-{planned.state}",
        Severity.CRITICAL if vital else Severity.WARNING,
        f"{title} {planned.why or f'is {planned.state}' + (f': {fields}' if fields else '')}",
        planned.remedy or "run outboxctl apply",
        _PRESENT_BUT_WORTH_A_WORD,
    )


def _one_step_for_the_slot(found: list[Finding]) -> list[Finding]:
    """Give what the plan says of the slot the next step of the rules that know the stored offset too."""
    codes = tuple(code for code in PositionCode if code.startswith("slot_"))
    step = next((finding.remedy for finding in found if finding.code in codes), None)
    ours = (f"{slots.KIND}-{State.MISSING}", f"{slots.KIND}-{State.BLOCKED}")
    return [
        replace(finding, remedy=step) if step is not None and finding.code in ours else finding
        for finding in found
    ]


def _of_slot(conn: psycopg.Connection[TupleRow], definition: Definition) -> Iterator[Finding]:
    live = slots.read(conn, definition.postgres.slot)
    if live is None or live.lost:
        return  # the plan says so
    name, source = definition.postgres.slot, "PostgreSQL docs, pg_replication_slots"
    if live.wal_status == "unreserved":
        cause = f"slot {name} is about to be lost: the next checkpoint may remove WAL it needs"
        yield Finding("slot-unreserved", Severity.CRITICAL, cause, "get the connector going now", source)
    elif live.wal_status == "extended":
        cause = f"slot {name} keeps more WAL than max_wal_size"
        yield Finding("slot-extended", Severity.WARNING, cause, "see why the connector is behind", source)
    if not live.active:
        cause = f"nobody reads slot {name}, and the server keeps WAL for it"
        yield Finding("slot-idle", Severity.WARNING, cause, "outboxctl connectors status", source)
    if server_major(conn) >= 18 and slots.late_publication(conn, definition):
        yield Finding(
            "publication-late",
            Severity.WARNING,
            f"publication {definition.postgres.publication} was made or changed after the position that slot "
            f"{name} has reached: rows written before that are not delivered",
            "compare the outbox with Kafka for that time and send what is missing again",
            "measured on PostgreSQL 18",
        )
    yield from _of_transactions(conn)


def _of_transactions(conn: psycopg.Connection[TupleRow]) -> Iterator[Finding]:
    old = [writer for writer in slots.open_writers(conn) if writer.age_seconds > LONG_TRANSACTION_SECONDS]
    if old:
        cause = f"{old[0]} has written and not ended: the slot keeps all WAL since then"
        remedy = f"look in pg_stat_activity what pid {old[0].pid} does, and let its application end it"
        yield Finding("long-transaction", Severity.WARNING, cause, remedy, "PostgreSQL docs, restart_lsn")


def _of_ticker(
    conn: psycopg.Connection[TupleRow], client: ConnectClient | None, definition: Definition
) -> Iterator[Finding]:
    """Look for a sender of the heartbeat. Without `client` Connect did not answer; it is not asked again."""
    if definition.watch.ticker is None or slots.ticking(conn):
        return
    reason = (
        "Kafka Connect does not answer"
        if client is None
        else message_gate.why_not(definition, definition.heartbeat_prefix, client=client, only_ours=True)
    )
    cause = "nobody sends the heartbeat: while the outbox is idle the slot stands still and WAL piles up"
    remedy = "run outboxctl watch (or watch --tick-only) as a service"
    if reason:
        cause += f"; outboxctl watch would send none: {reason}"
        remedy = (
            "look again when it does"
            if client is None
            else "see outboxctl plan, and connectors/README.md on a connector that apply did not make"
        )
    yield Finding("no-ticker", Severity.WARNING, cause, remedy, "measured on PostgreSQL 15 and 18")


def _of_connector(
    conn: psycopg.Connection[TupleRow], client: ConnectClient, definition: Definition
) -> Iterator[Finding]:
    name, major, version = definition.connect.connector, server_major(conn), client.debezium_version()
    yield from checks.releases(debezium=version, postgres_major=major)
    if version is not None:
        yield from _of_definition(definition, version, major)
    config = client.config(name)
    if config is None:
        return
    yield from checks.check(
        config, debezium=version, postgres_major=major, table=captured.outbox_of(conn, config)
    )
    for verdict in offsets.verdicts(offsets.read(conn, config, client.offsets(name))):
        if verdict.severity is not Severity.OK:
            yield Finding(
                verdict.code, verdict.severity, verdict.cause, verdict.next_step, "offset against slot"
            )
    yield from _of_status(client.status(name))


def _of_definition(definition: Definition, version: Version, major: int) -> Iterator[Finding]:
    yield from protected_overrides(definition, debezium=version, postgres_major=major)
    yield from known_losses(definition, debezium=version)


def _of_status(status: ConnectorStatus | None) -> Iterator[Finding]:
    explanation = "" if status is None else registration.explain(status)
    if status is not None and explanation:
        cause = f"connector {status.name}: {explanation}"
        remedy = "outboxctl connectors status, mend the cause, then outboxctl connectors restart --failed"
        yield Finding("connector-state", Severity.CRITICAL, cause, remedy, "Kafka Connect")
