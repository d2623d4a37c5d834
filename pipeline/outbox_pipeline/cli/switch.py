"""`outboxctl switch`: switch a live outbox between connector and relay."""

from __future__ import annotations

import click

from outbox_connectors.errors import ExitCode
from outbox_pipeline.cli import Invocation, output, pass_invocation
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.operations import switch
from outbox_pipeline.servers import postgres, slots


@click.command("switch")
@click.option(
    "--to",
    "road",
    type=click.Choice(["relay", "cdc"]),
    required=True,
    help="The new publisher.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, change nothing.")
@pass_invocation
def switch_(invocation: Invocation, road: str, dry_run: bool) -> int:
    """Switch a live outbox from the connector to the relay, or back; no event is lost or published by both.

    Run it again after an interruption. After --to relay, start outboxctl relay; --to cdc ends the
    relay's workers itself and starts the connector.
    """
    definition = invocation.definition()
    with (
        postgres.as_admin(definition, "outboxctl switch") as conn,
        ConnectClient(definition.connect) as client,
    ):
        if dry_run:
            (switch.check_to_relay if road == "relay" else switch.check_to_cdc)(conn, client, definition)
            slot = slots.read(conn, definition.postgres.slot)
            live = "the connector's" if slot is not None else "the relay's"
            plan = {
                "relay": "move published rows to the history, stop the connector, drop its slot",
                "cdc": "end the relay's workers, make a slot, carry the rows before it, start the connector",
            }[road]
            found = {"road": road, "now": live, "plan": plan}
            output.json_document(found) if invocation.json else output.line(f"the outbox is {live}: {plan}")
            return ExitCode.OK
        move = switch.to_relay if road == "relay" else switch.to_cdc
        done = move(conn, client, definition, say=output.progress)
    if invocation.json:
        output.json_document({"road": done.road, "rows": done.rows})
    elif road == "relay":
        output.line("the outbox is the relay's: start outboxctl relay")
    else:
        output.line("the outbox is the connector's")
    return ExitCode.OK
