"""Detach a connector from its slot: stopped, its task ended, its stored offset no longer what it was."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline.connect.client import ConnectClient
from outbox_pipeline.errors import Failed
from outbox_pipeline.servers import slots

PATIENCE_SECONDS = 180.0
_BETWEEN_TRIES_SECONDS = 0.1


def detach(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    change_offset: Callable[[str], None],
    *,
    again: str,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Stop the connector, wait until nobody reads the slot, and call `change_offset` with its name.

    Connect accepts a change of the offset only when the task has ended, with its producer closed; its
    status and the slot say so earlier. So what has returned proves that the last record was sent. Without a
    connector nothing is stopped or changed, but the slot has to be free all the same. Run a second time it
    does the same. Raises Failed after PATIENCE_SECONDS; `again` is what to do then, when the slot is free.
    """
    name = definition.connect.connector
    registered = client.config(name) is not None
    if registered:
        client.stop(name)
    deadline = clock() + PATIENCE_SECONDS
    while (slot := slots.read(conn, definition.postgres.slot)) is not None and slot.active:
        if clock() > deadline:
            raise Failed(
                f"the slot is still read by pid {slot.active_pid}",
                where=f"slot {definition.postgres.slot}",
                remedy=f"find out whose it is (pg_stat_activity) and stop it there, then {again} again",
            )
        sleep(_BETWEEN_TRIES_SECONDS)
    while registered:
        try:
            change_offset(name)
            return
        except Failed:  # its task has not ended
            if clock() > deadline:
                raise
            sleep(_BETWEEN_TRIES_SECONDS)
