"""`outboxctl relay`: publish rows of the outbox to Kafka without Connect."""

from __future__ import annotations

from threading import Event

import click

from outbox_connectors.errors import ExitCode, UsageError
from outbox_connectors.signals import Stopping
from outbox_pipeline import relay
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.relay import schema
from outbox_pipeline.relay.names import DEFAULT_SHARDS, MAX_SHARDS, relay_names
from outbox_pipeline.relay.session import read_settings
from outbox_pipeline.relay.settings import DEFAULT_BATCH, MAX_BATCH
from outbox_pipeline.relay.wakeup import Waiter
from outbox_pipeline.servers import postgres
from outbox_pipeline.servers.plan import State


@click.command("relay")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Worker processes.")
@click.option("--until-empty", is_flag=True, help="Exit when the outbox is empty.")
@click.option(
    "--mode",
    type=click.Choice(["delete", "archive"]),
    default="delete",
    show_default=True,
    help="Delete published rows, or move them to the history.",
)
@click.option(
    "--on-poison",
    type=click.Choice([choice.value for choice in relay.OnPoison]),
    default=relay.OnPoison.BLOCK_AGGREGATE.value,
    show_default=True,
    help="When a row can never be published: skip it, make its aggregate wait, or stop the relay.",
)
@click.option(
    "--transactions",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="off: at least once, for brokers that do not allow transactions.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, MAX_BATCH),
    default=DEFAULT_BATCH,
    show_default=True,
    help="Maximum number of events per transaction.",
)
@click.option("--init", "set_up", is_flag=True, help="Create what the relay needs, and exit.")
@click.option(
    "--shards",
    type=click.IntRange(1, MAX_SHARDS),
    help=f"With --init: number of shards, the maximum number of workers. [{DEFAULT_SHARDS}]",
)
@click.option("--no-notify", is_flag=True, help="With --init: create no trigger that notifies the workers.")
@click.option("--archive", is_flag=True, help="With --init: create the history for --mode archive.")
@click.option("--dry-run", is_flag=True, help="With --init: show the plan and change nothing.")
@pass_invocation
def relay_(
    invocation: Invocation,
    workers: int,
    until_empty: bool,
    mode: str,
    on_poison: str,
    transactions: str,
    batch: int,
    set_up: bool,
    shards: int | None,
    no_notify: bool,
    archive: bool,
    dry_run: bool,
) -> int:
    """Publish rows of the outbox to Kafka, with the bytes Debezium would write. No Connect needed.

    Exactly once into the topics for readers with isolation.level=read_committed, in order per
    aggregate. Start as many as you like, on any machine: the shards are divided among them.
    After SIGTERM or Ctrl-C it finishes the batches in flight and exits.
    """
    if set_up:
        return _init(invocation, shards, notify=not no_notify, archive=archive, dry_run=dry_run)
    if shards or no_notify or archive or dry_run:
        raise UsageError("--shards, --no-notify, --archive and --dry-run go with --init")
    settings = relay.RelaySettings(
        workers=workers,
        batch=batch,
        mode=relay.Mode(mode),
        transactions=transactions == "on",
        on_poison=relay.OnPoison(on_poison),
        until_empty=until_empty,
    )
    if not settings.transactions:
        output.warning("transactions are off: after a crash up to a batch per shard is published again")
    stop, waiter = Event(), Waiter()

    def end() -> None:
        stop.set()
        waiter.wake()

    with Stopping(end):
        done = relay.run(invocation.definition(), settings, say=output.progress, stop=stop, waiter=waiter)
    if invocation.json:
        output.json_document(done.document())
    else:
        output.line(
            ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in done.document().items())
        )
    return ExitCode.OK


def _init(invocation: Invocation, shards: int | None, *, notify: bool, archive: bool, dry_run: bool) -> int:
    definition = invocation.definition()
    with postgres.as_admin(definition, "outboxctl relay") as conn:
        stored = read_settings(conn, relay_names(definition))
        number = shards or (stored[1] if stored else DEFAULT_SHARDS)
        options = schema.SetUpOptions(number, notify=notify, archive=archive)
        if dry_run:
            found = schema.plan(conn, definition, options)
        else:
            found = schema.init(conn, definition, options, say=output.progress)
    if invocation.json:
        output.json_document(found.document())
        return found.exit_code if dry_run else ExitCode.OK
    for planned in found.objects:
        state = planned.state if dry_run else "present"
        output.line(f"{planned.kind} {planned.name}: {state}{': ' + planned.why if planned.why else ''}")
        if dry_run and planned.state is not State.PRESENT and planned.statement:
            output.line("  " + planned.statement.replace("\n", "\n  "))
    return found.exit_code if dry_run else ExitCode.OK
