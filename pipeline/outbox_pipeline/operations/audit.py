"""Audit a pipeline by ids: what was written, what is in the topics, what was applied.

Reads everything once, in bounded memory, and changes nothing. While events flow, some are in flight:
missing ids have `settle_seconds` to arrive before they count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition, TableName
from outbox_pipeline.ids import in_tables
from outbox_pipeline.ids.comparison import CLOCK_TOLERANCE, SpooledTopics, compare, spooled_rows
from outbox_pipeline.ids.spool import Spool, temporary_spool
from outbox_pipeline.operations.audit_report import AuditReport
from outbox_pipeline.provision.tables import identifier
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import relay_names

__all__ = ["AuditReport", "InboxTable", "audit"]

Connection = psycopg.Connection[TupleRow]
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class InboxTable:
    """Where the ids of applied events are. `consumer` None: those of every consumer."""

    conn: Connection
    table: TableName
    consumer: str | None = None


def audit(
    conn: Connection,
    definition: Definition,
    *,
    since: datetime | None = None,
    inbox: InboxTable | None = None,
    settle_seconds: float = 10.0,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> AuditReport:
    """Compare the ids of outbox, topics and inbox.

    `since` looks only at events that occurred later, by their own time; where the clocks of writers and
    brokers differ so much that a record is not found near it, the topics are read from their beginning.
    Where a relay deletes what it has published, the outbox holds only what is still to be delivered, so
    nothing can be unexpected. Temporary files take 16 bytes per id and source. Raises Unreachable.
    """
    names = relay_names(definition)
    live = schema.read(conn, names)
    tables = [names.qualified(names.outbox)]
    if live.history:
        tables.append(names.qualified(names.history))
    kept = live.history or not live.settings
    with ExitStack() as opened:
        rows = opened.enter_context(spooled_rows(conn, tables, since=since))
        say(f"{rows.count:,} rows read")
        begins = [None] if since is None else [since - CLOCK_TOLERANCE, None]
        for begin in begins:
            records = opened.enter_context(SpooledTopics(definition, begin=begin, since=since))
            say(f"{records.read_on():,} records read")
            applied = None
            if inbox is not None:
                applied = opened.enter_context(temporary_spool())
                in_tables.read_applied(inbox.conn, identifier(inbox.table), inbox.consumer, applied)
                say(f"{applied.count:,} applied ids read")
            report = _report(rows, records.ids, applied, kept=kept)
            if not report.missing:
                break
        deadline = clock() + settle_seconds
        while report.missing and clock() < deadline:
            report.arrived(records.topics.more(POLL_SECONDS))
    return report


def _report(rows: Spool, records: Spool, applied: Spool | None, *, kept: bool) -> AuditReport:
    report = AuditReport()
    done = applied.buckets() if applied is not None else None
    for part in compare(rows, records):
        report.add(part, next(done) if done is not None else None, kept=kept)
    return report
