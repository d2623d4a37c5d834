"""Audit a pipeline by ids: what was written, what is in the topics, what was applied.

Reads everything once, in bounded memory, and changes nothing. While events flow, some are on their
way: ids that are missing get `settle_seconds` to arrive before they count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition, TableName
from outbox_pipeline.ids import in_tables
from outbox_pipeline.ids.in_topics import Topics
from outbox_pipeline.ids.spool import Spool
from outbox_pipeline.operations.audit_report import AuditReport
from outbox_pipeline.provision.tables import identifier
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import relay_names

__all__ = ["AuditReport", "InboxTable", "audit"]

Connection = psycopg.Connection[TupleRow]
LOOK_SECONDS = 0.5
SLACK = timedelta(hours=1)  # between the time of an event and that of its record


@dataclass(frozen=True, slots=True)
class InboxTable:
    """Where a consumer's applied ids are. `consumer` None: whoever has applied them."""

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
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="outbox-audit-")))
        written = opened.enter_context(Spool(folder / "written"))
        in_tables.read(conn, tables, since, written)
        say(f"{written.count:,} rows read")
        begins = [None] if since is None else [since - SLACK, None]
        for number, begin in enumerate(begins):
            topics = opened.enter_context(Topics(definition, begin=begin, since=since))
            delivered = opened.enter_context(Spool(folder / f"delivered-{number}"))
            for chunk in topics.to_the_end():
                delivered.add(chunk)
            say(f"{delivered.count:,} records read")
            applied = None
            if inbox is not None:
                applied = opened.enter_context(Spool(folder / f"applied-{number}"))
                in_tables.read_applied(inbox.conn, identifier(inbox.table), inbox.consumer, applied)
                say(f"{applied.count:,} applied ids read")
            books = _compare(written, delivered, applied, kept=kept)
            if not books.missing:
                break
        deadline = clock() + settle_seconds
        while books.missing and clock() < deadline:
            books.arrived(topics.more(LOOK_SECONDS))
    return books


def _compare(written: Spool, delivered: Spool, applied: Spool | None, *, kept: bool) -> AuditReport:
    books = AuditReport()
    done = applied.buckets() if applied is not None else None
    for ours, theirs in zip(written.buckets(), delivered.buckets(), strict=True):
        books.enter(ours, theirs, next(done) if done is not None else None, kept=kept)
    return books
