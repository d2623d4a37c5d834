"""Faults of handlers, chosen at random for an event and applied in its first attempts."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import psycopg

from outbox_consumers import Event, Reject, Skip

Connection: TypeAlias = psycopg.Connection[Any]
Fault: TypeAlias = Callable[[Connection, Event], None]

DIVIDE_BY_ZERO: Final = "SELECT 1 / 0"
INSERT_ROLLED_BACK: Final = "INSERT INTO public.effect (n) VALUES (-1)"  # must never be committed


def raises(conn: Connection, event: Event) -> None:
    raise ValueError("not yet")


def fails(conn: Connection, event: Event) -> None:
    conn.execute(INSERT_ROLLED_BACK)
    conn.execute(DIVIDE_BY_ZERO)


def swallows_error(conn: Connection, event: Event) -> None:
    with suppress(psycopg.Error):
        conn.execute(DIVIDE_BY_ZERO).fetchone()


def swallows_pipeline_error(conn: Connection, event: Event) -> None:
    with suppress(psycopg.Error):
        conn.execute(DIVIDE_BY_ZERO)  # in a pipeline, a later statement reports the error


def aborts_pipeline(conn: Connection, event: Event) -> None:
    """Let psycopg prepare a statement after a failed one, which the server ignores."""
    with conn.pipeline():
        conn.execute(DIVIDE_BY_ZERO)
        for _ in range(8):
            conn.execute(f"{INSERT_ROLLED_BACK} -- {event.data['n']}".encode())


def commits(conn: Connection, event: Event) -> None:
    conn.execute(INSERT_ROLLED_BACK)
    conn.commit()


def rolls_back_part(conn: Connection, event: Event) -> None:
    """Roll back a savepoint and continue."""
    with suppress(psycopg.Error), conn.transaction():
        conn.execute(INSERT_ROLLED_BACK)
        conn.execute(DIVIDE_BY_ZERO).fetchone()


def sets_local_search_path(conn: Connection, event: Event) -> None:
    conn.execute("SET LOCAL search_path TO pg_catalog")


def sets_search_path(conn: Connection, event: Event) -> None:
    conn.execute("SET search_path TO pg_catalog")


def skips(conn: Connection, event: Event) -> None:
    raise Skip


def rejects(conn: Connection, event: Event) -> None:
    raise Reject("never")


FAILING: Final[tuple[Fault, ...]] = (
    raises,
    fails,
    swallows_error,
    swallows_pipeline_error,
    aborts_pipeline,
    commits,
)
HARMLESS: Final[tuple[Fault, ...]] = (rolls_back_part, sets_local_search_path, sets_search_path)
PERMANENT: Final[tuple[Fault, ...]] = (skips, rejects)  # applied in every attempt, so there is no effect
FAULTS: Final = {fault.__name__: fault for fault in (*FAILING, *HARMLESS, *PERMANENT)}


def random_data(chance: random.Random, n: int) -> dict[str, Any]:
    """Return random data of an event: one in twenty-five has a fault, in one or two attempts."""
    fault = chance.choice(list(FAULTS)) if chance.random() < 0.04 else ""
    return {"n": n, "fault": fault, "times": chance.choice((1, 1, 2))}


def is_permanent(data: dict[str, Any]) -> bool:
    """Return whether the event never has an effect."""
    return bool(data["fault"]) and FAULTS[data["fault"]] in PERMANENT


def expected_failures(data: dict[str, Any]) -> int:
    """Return how often the handler fails with this event; it must not make others fail."""
    return data["times"] if data["fault"] and FAULTS[data["fault"]] in FAILING else 0


def apply_fault(conn: Connection, event: Event) -> None:
    """Apply the fault of an event in the attempts that have one."""
    data = event.data
    if data["fault"] and (is_permanent(data) or event.attempt <= data["times"]):
        FAULTS[data["fault"]](conn, event)
