"""Start the connector at the end of a change, and prove with a canary that it delivers."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline import provision
from outbox_pipeline.connect import canary
from outbox_pipeline.connect.answers import SourceOffset
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.provision.debezium_connector import HALTED

CANARY_SECONDS = 180.0

Say = Callable[[str], None]


def start(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    outdated: Callable[[SourceOffset | None], bool],
    say: Say,
) -> None:
    """Start a connector that is stopped or paused, else register or repair it; wait for a canary.

    A stored offset that is `outdated` is removed before, so that reading begins where the slot stands.
    Raises what `provision.apply` and `prove` raise.
    """
    name = definition.connect.connector
    status = client.status(name) if client.config(name) is not None else None
    if status is not None and status.state in HALTED:
        if outdated(client.offsets(name)):
            if not status.stopped:
                client.stop(name)  # Connect removes no offset of a paused connector
            client.reset_offsets(name)
        client.resume(name)
    else:
        provision.apply(conn, client, definition, say=say)
    prove(conn, definition, say)


def prove(conn: psycopg.Connection[TupleRow], definition: Definition, say: Say) -> None:
    """Wait until an event has travelled through the connector.

    Raises what `canary.travel` raises when none has after CANARY_SECONDS.
    """
    travelled = canary.travel(conn, definition, timeout_seconds=CANARY_SECONDS)
    name = definition.connect.connector
    say(f"connector {name} works: a canary took {travelled.seconds * 1000:.0f} ms")
