"""`outboxctl audit`: compare the ids of outbox, topics and inbox."""

from __future__ import annotations

from contextlib import ExitStack
from uuid import UUID

import click
import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from outbox_connectors.definition import Secret, TableName
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.cli.moments import moment
from outbox_pipeline.operations import audit
from outbox_pipeline.servers import postgres, trust

SHOWN = 20


@click.command("audit")
@click.option("--since", metavar="TIME", help="Only events that occurred since then, ISO 8601.")
@click.option("--inbox", "dsn", metavar="DSN", help="Also compare with the inbox in this database.")
@click.option(
    "--inbox-table",
    default="inbox",
    show_default=True,
    help="Inbox table, with or without schema.",
)
@click.option("--consumer", metavar="NAME", help="Only ids that this consumer has applied.")
@click.option(
    "--settle",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Seconds to wait for missing events before they are reported.",
)
@pass_invocation
def audit_(
    invocation: Invocation,
    since: str | None,
    dsn: str | None,
    inbox_table: str,
    consumer: str | None,
    settle: float,
) -> int:
    """Compare the ids of outbox, topics and inbox. Changes nothing.

    Exits 5 when an event is missing. With --inbox, events that were delivered and not applied count
    too. Suitable for a cron job: memory stays small however many events there are.
    """
    definition = invocation.definition()
    begin = None if since is None else moment(since)
    with ExitStack() as opened:
        conn = opened.enter_context(postgres.as_admin(definition, "outboxctl audit"))
        inbox = None
        if dsn is not None:
            schema, _, name = inbox_table.rpartition(".")
            table = TableName(schema or "public", name)
            inbox = audit.InboxTable(opened.enter_context(_inbox_session(dsn, table)), table, consumer)
        report = audit.audit(
            conn, definition, since=begin, inbox=inbox, settle_seconds=settle, say=output.progress
        )
    if invocation.json:
        output.json_document(report.document())
    else:
        _show(report)
    return report.exit_code


def _inbox_session(dsn: str, table: TableName) -> psycopg.Connection[TupleRow]:
    """Open a session that finds PostgreSQL's own functions only. Raises Refused for an untrusted inbox."""
    conn = postgres.connect(Secret(dsn), application_name="outboxctl audit")
    try:
        postgres.administer(conn)
        trust.refuse(trust.untrusted(conn, [sql.Identifier(table.schema, table.name).as_string(None)]))
    except BaseException:
        conn.close()
        raise
    return conn


def _show(report: audit.AuditReport) -> None:
    applied = (
        "" if report.applied is None else f"applied {report.applied:,}  unapplied {report.unapplied:,}  "
    )
    output.line(
        f"written {report.written:,}  delivered {report.delivered:,}  {applied}missing {report.missing:,}  "
        f"duplicated {report.duplicated:,}  unexpected {report.unexpected:,}"
    )
    for what, ids, count in (
        ("missing", report.missing_ids, report.missing),
        ("unapplied", report.unapplied_ids, report.unapplied),
    ):
        for one in ids[:SHOWN]:
            output.line(f"{what} {UUID(bytes=one)}")
        if count > SHOWN:
            output.line(f"and {count - SHOWN:,} more {what}: --json lists them")
