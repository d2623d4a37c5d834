"""Prove that a pipeline works: its task runs steadily, its slot is in use, and a canary arrived.

RUNNING alone proves nothing: a lost slot, a role without rights and a publication without the table
all show RUNNING for half an hour or for ever (measured on Debezium 3.7.0.Final).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg.rows import TupleRow

from outbox_connectors.definition import Definition
from outbox_pipeline.connect import canary
from outbox_pipeline.connect.client import ConnectClient, ConnectorStatus
from outbox_pipeline.errors import Failed
from outbox_pipeline.servers import slots

STEADY_SECONDS = 15.0
PATIENCE_SECONDS = 120.0
CANARY_SECONDS = 60.0
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Proof:
    """How long it took until the task had run steadily, and how long the canary travelled."""

    steady_seconds: float
    canary_seconds: float


def prove(
    conn: psycopg.Connection[TupleRow],
    client: ConnectClient,
    definition: Definition,
    *,
    steady_seconds: float = STEADY_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Proof:
    """Wait until the task has run `steady_seconds` on one slot session and a canary came through.

    Raises Failed with the task's own reason as soon as it is FAILED, or with the last state seen after
    `patience_seconds`.
    """
    started = clock()
    deadline, since, session = started + patience_seconds, None, None
    while True:
        status = client.status(definition.connect.connector)
        slot = slots.read(conn, definition.postgres.slot)
        _refuse_failed(status, definition)
        current = slot.active_pid if slot is not None and _running(status) else None
        if current is None or current != session:
            session, since = current, clock()
        elif since is not None and clock() - since >= steady_seconds:
            break
        if clock() >= deadline:
            raise _not_steady(status, slot, definition, patience_seconds)
        sleep(POLL_SECONDS)
    steady = clock() - started
    return Proof(steady, canary.travel(conn, definition, timeout_seconds=CANARY_SECONDS).seconds)


def _running(status: ConnectorStatus | None) -> bool:
    return (
        status is not None
        and status.state == "RUNNING"
        and bool(status.tasks)
        and all(task.state == "RUNNING" for task in status.tasks)
    )


def _refuse_failed(status: ConnectorStatus | None, definition: Definition) -> None:
    if status is not None and status.failed:
        raise Failed(
            f"FAILED: {status.trace_line}",
            where=f"connector {definition.connect.connector}",
            remedy="mend the cause and apply again",
        )


def _not_steady(
    status: ConnectorStatus | None, slot: slots.LiveSlot | None, definition: Definition, seconds: float
) -> Failed:
    tasks = ", ".join(task.state for task in status.tasks) if status is not None else ""
    state = "not registered" if status is None else f"{status.state}, task {tasks or 'not started'}"
    use = "missing" if slot is None else "in use" if slot.active else "not in use"
    return Failed(
        f"did not run steadily within {seconds:.0f} s: {state}, slot {definition.postgres.slot} {use}",
        where=f"connector {definition.connect.connector}",
        remedy="look at the worker's log; outboxctl doctor names known traps",
    )
