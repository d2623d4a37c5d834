"""`outboxctl dead-letters outbox`: rows that the relay can never publish."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import click
import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.errors import UsageError
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.relay import dead_letters
from outbox_pipeline.servers import postgres, topic_reader

_id = click.option("--id", "event_id", type=click.UUID, help="Only this event.")
_key = click.option("--key", metavar="TEXT", help="Only events of this aggregate id.")
_all = click.option("--all", "every", is_flag=True, help="All dead letters.")
_dry_run = click.option("--dry-run", is_flag=True, help="Show which, change nothing.")


@click.group("outbox")
def outbox() -> None:
    """List, requeue or discard rows that the relay can never publish."""


@outbox.command("list")
@_id
@_key
@pass_invocation
def list_(invocation: Invocation, event_id: UUID | None, key: str | None) -> None:
    """List dead letters with their causes, oldest failure first."""
    with _session(invocation) as conn:
        found = dead_letters.find(conn, invocation.definition(), event_id=event_id, aggregate_id=key)
    if invocation.json:
        output.json_document(found)
        return
    output.table(
        [_row(letter) for letter in found], ["FAILED", "TYPE", "KEY", "ID", "TRIES", "BLOCKS", "CAUSE"]
    )


def _row(letter: dict[str, Any]) -> list[str]:
    return [
        f"{letter['failed_at']:%Y-%m-%d %H:%M:%S}",
        topic_reader.harmless(letter["aggregate_type"] or "-"),
        topic_reader.harmless(letter["aggregate_id"] or "-"),
        letter["id"],
        str(letter["attempts"]),
        "yes" if letter["blocks"] else "no",
        topic_reader.harmless(letter["cause"]),
    ]


@outbox.command()
@_id
@_key
@_all
@_dry_run
@pass_invocation
def requeue(
    invocation: Invocation, event_id: UUID | None, key: str | None, every: bool, dry_run: bool
) -> None:
    """Move dead letters back to the outbox, to their old positions, after the cause is fixed."""
    _change(invocation, event_id, key, every, dry_run, verb="requeued")


@outbox.command()
@_id
@_key
@_all
@_dry_run
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_invocation
def discard(
    invocation: Invocation, event_id: UUID | None, key: str | None, every: bool, dry_run: bool, yes: bool
) -> None:
    """Delete dead letters permanently; their aggregates continue without them."""
    if not (yes or dry_run):
        if invocation.json or not sys.stdin.isatty():
            raise UsageError("discard asks before it deletes, and nobody can answer here", remedy="add --yes")
        click.confirm("Delete them for good?", err=True, abort=True)
    _change(invocation, event_id, key, every, dry_run, verb="discarded")


def _change(
    invocation: Invocation, event_id: UUID | None, key: str | None, every: bool, dry_run: bool, *, verb: str
) -> None:
    if not (event_id or key or every):
        raise UsageError("which ones?", remedy="give --id, --key or --all")
    definition = invocation.definition()
    with _session(invocation) as conn:
        found = dead_letters.find(conn, definition, event_id=event_id, aggregate_id=key)
        ids = [letter["id"] for letter in found]
        if not dry_run:
            change = dead_letters.requeue if verb == "requeued" else dead_letters.discard
            change(conn, definition, ids)
    if invocation.json:
        output.json_document({"ids": ids, verb: not dry_run})
        return
    for one in ids:
        output.line(one)
    output.progress(f"{len(ids)} {'would be ' if dry_run else ''}{verb}")


@contextmanager
def _session(invocation: Invocation) -> Iterator[psycopg.Connection[TupleRow]]:
    definition = invocation.definition()
    with postgres.as_admin(definition, "outboxctl dead-letters") as conn:
        yield conn
