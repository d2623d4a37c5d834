"""`outboxctl prune`: remove old rows that are proven delivered."""

from __future__ import annotations

import click

from outbox_connectors.errors import ExitCode
from outbox_pipeline import sql as statements
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.operations import prune
from outbox_pipeline.servers import postgres


@click.command("prune")
@click.option("--dry-run", is_flag=True, help="Show what could be removed, remove nothing.")
@pass_invocation
def prune_(invocation: Invocation, dry_run: bool) -> int:
    """Remove rows older than outbox.keep that are proven delivered: by the slot, and by id in the topics.

    Days of a partitioned outbox are dropped, other rows deleted in small batches. Refuses while an old
    snapshot would keep the deleted rows, and when nothing old can be proven.
    """
    definition = invocation.definition()
    with postgres.as_admin(definition, "outboxctl prune") as conn:
        (now,) = conn.execute(statements.get("prune_read_clock")).fetchone() or (None,)
        done = prune.prune(conn, definition, now, dry_run=dry_run, say=output.progress)
    if invocation.json:
        output.json_document({**done.document(), "dry_run": dry_run})
        return ExitCode.OK
    verb = "would be removed" if dry_run else "removed"
    output.line(
        f"{done.rows:,} rows {verb}, {len(done.partitions)} days dropped, {done.freed_bytes:,} bytes freed, "
        f"{done.reusable_bytes:,} bytes for new rows"
    )
    if done.stopped:
        output.warning(f"stopped early: {done.stopped}")
    if done.unproven:
        output.warning(f"{done.unproven:,} old rows stay: no topic has them; run outboxctl audit")
    return ExitCode.OK
